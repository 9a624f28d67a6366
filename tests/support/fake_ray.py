"""A driver of Ray without Ray, for the side of the sweep; behaves as `KERNBENCH_FAKE_RAY` says."""

import os
from collections import deque
from collections.abc import Mapping
from typing import Any

_behaviour = os.environ.get("KERNBENCH_FAKE_RAY", "")
_under_way: deque[Mapping[str, Any]] = deque()
_most = [0]
_slots = [3]


def start(message: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses, or says how many runs may be under way."""
    if _behaviour == "refuses":
        refused = {"summary": "Ray cannot be started here", "facts": ["no room"], "hint": ""}
        return {"refused": refused}
    _slots[0] = message["jobs"] or 3
    return {"slots": _slots[0]}


def submit(message: Mapping[str, Any]) -> dict[str, Any]:
    """Takes a run."""
    _under_way.append(message)
    _most[0] = max(_most[0], len(_under_way))
    return {}


def next_(message: Mapping[str, Any]) -> dict[str, Any]:
    """Answers for the run that was given last; its result says how many were under way at most."""
    asked = _under_way.pop()
    number = asked["spec"]["arguments"][-1]
    if number == "2" and _behaviour == "dies":
        os.write(2, b"the raylet is gone\n")
        os._exit(1)
    if number == "2" and _behaviour == "fails":
        raise RuntimeError("no cluster")
    if number == "2" and _behaviour == "loses":
        return {
            "key": asked["key"],
            "died": ["NodeDiedError: a", "NodeDiedError: b"],
            "slots": _slots[0],
        }
    record = {
        "key": asked["key"],
        "run": "",
        "varied": {},
        "spec": asked["spec"],
        "ok": True,
        "sim_ps": int(number),
        "results": [{"most": _most[0], "limit_s": asked["limit_s"]}],
        "failure": None,
        "report": "",
        "breakdown": None,
        "wall_s": 1.0,
    }
    return {"key": asked["key"], "record": record, "slots": _slots[0]}


def stop(message: Mapping[str, Any]) -> dict[str, Any]:
    """Does nothing."""
    return {}


HANDLERS = {"start": start, "submit": submit, "next": next_, "stop": stop}
