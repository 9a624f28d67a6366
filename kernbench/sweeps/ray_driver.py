"""The process that speaks to Ray for a sweep; see `on_ray`. Only this module imports Ray."""

from collections.abc import Mapping
from typing import Any, Final

from kernbench.sweeps import ray_task

_WAIT_S: Final = 5.0
"""Seconds between two looks at whether the cluster is still there."""

_AHEAD: Final = 2
"""Tasks at a time for each CPU, so that the next one is there when one ends."""

_STORE_BYTES: Final = 128 << 20
"""Of Ray's object store on this machine: records are small."""

_ENDS: Final = 3
"""Lines of an error of Ray that are shown."""


class _State:
    """What the process knows of Ray.

    Attributes:
        task: The function of `ray_task`, as Ray calls it.
        folder: Working directory of the tasks; None if Ray brings the files to each node.
        jobs: Most tasks at a time; None for as many as there are CPUs.
        pending: What is under way, with its message, and whether it has been tried before.
    """

    def __init__(self) -> None:
        self.task: Any = None
        self.folder: str | None = None
        self.jobs: int | None = None
        self.pending: dict[Any, tuple[dict[str, Any], list[str]]] = {}


_state: Final = _State()


def start(message: Mapping[str, Any]) -> dict[str, Any]:
    """Connects with Ray, or starts it.

    Args:
        message: `address`, `jobs` and `folder`, as in `on_ray.OnRay`.
    """
    import ray

    address, _state.jobs = message["address"], message["jobs"]
    common = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            _state.folder = message["folder"]
            ray.init(
                address="local",
                num_cpus=_state.jobs,
                include_dashboard=False,
                object_store_memory=_STORE_BYTES,
                **common,
            )
        else:
            # Nodes get what is in the folder, as it is now.
            ray.init(address=address, runtime_env={"working_dir": message["folder"]}, **common)
    except Exception as error:
        where = "cannot be started here" if address is None else f"at {address} cannot be reached"
        return _refused(f"Ray {where}", error, "" if address is None else _REACH)
    # No retries of Ray's own, which would not be reported.
    _state.task = ray.remote(num_cpus=1, max_retries=0)(ray_task.run)
    return {"slots": _slots()}


def submit(message: Mapping[str, Any]) -> dict[str, Any]:
    """Gives a run to Ray.

    Args:
        message: `key`, `spec` as plain values, and `limit_s` of wall time or None.
    """
    names = "key", "spec", "limit_s"
    _give({"folder": _state.folder, **{name: message[name] for name in names}}, [])
    return {}


def next_(message: Mapping[str, Any]) -> dict[str, Any]:
    """Waits for a run to end; answers with its `key` and its `record`, or why it `died`.

    Args:
        message: Nothing of use.
    """
    import ray
    from ray import exceptions

    del message
    while True:
        done, _ = ray.wait(list(_state.pending), timeout=_WAIT_S)
        if not done:
            ray.cluster_resources()  # fails if the cluster is gone
            continue
        asked, died = _state.pending.pop(done[0])
        try:
            found = ray.get(done[0])
        except exceptions.RayTaskError as error:
            return _refused("a worker of Ray cannot run kernbench", error, _INSTALL)
        except exceptions.RuntimeEnvSetupError as error:
            return _refused("Ray cannot bring the files of this folder to a node", error, "")
        except (exceptions.LocalRayletDiedError, exceptions.RaySystemError):
            raise
        except exceptions.RayError as error:
            died = [*died, f"{type(error).__name__}: {_last_lines(error)[0]}"]
            if len(died) < 2:
                _give(asked, died)
                continue
            return {"key": asked["key"], "died": died, "slots": _slots()}
        if "differs" in found:
            summary = f"the node {found['differs']} of Ray has other files than this machine"
            return {"refused": {"summary": summary, "facts": [_FILES], "hint": _INSTALL}}
        return {"key": asked["key"], "record": found["record"], "slots": _slots()}


def stop(message: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves Ray, or ends it if it was started here.

    Args:
        message: Nothing of use.
    """
    import ray

    del message
    ray.shutdown()
    return {}


HANDLERS: Final = {"start": start, "submit": submit, "next": next_, "stop": stop}

_REACH: Final = (
    "`ray status` says where a cluster is; one that asks for a token finds it in RAY_AUTH_TOKEN; "
    "without an address, Ray starts here"
)
_INSTALL: Final = "every node needs the same kernbench, and Ray: pip install ray"
_FILES: Final = (
    "the bench, the machine, the algorithms or kernbench itself differ there; "
    "name files by paths below the working directory, which Ray takes there"
)


def _give(asked: dict[str, Any], died: list[str]) -> None:
    _state.pending[_state.task.remote(asked)] = asked, died


def _slots() -> int:
    """Returns how many tasks may be under way; a cluster may grow."""
    import ray

    if _state.jobs is not None:
        return _state.jobs
    return max(1, _AHEAD * int(ray.cluster_resources().get("CPU", 0)))


def _refused(summary: str, error: BaseException, hint: str) -> dict[str, Any]:
    return {"refused": {"summary": summary, "facts": _last_lines(error), "hint": hint}}


def _last_lines(error: BaseException) -> list[str]:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-_ENDS:] or [type(error).__name__]
