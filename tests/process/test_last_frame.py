"""Which frame tells where a rank has left: the innermost one after which nothing else is done."""

from types import FrameType
from typing import Any, cast

import pytest

from kernbench.des import EventLoop
from kernbench.process.last_frame import last_frame

# A program each; `look()` keeps the frame, and the number is that of the line which it tells.
PROGRAMS = {
    "the script's own line": ("look()\nx = 1\n", 2),
    "main is the last thing": ("def main():\n    look()\n    return 3\nmain()\n", 3),
    "under a guard": ("def main():\n    look()\n    return\nif 1:\n    main()\n", 3),
    "an early return": (
        "def main():\n    for i in range(3):\n        look()\n        if i == 1:\n"
        "            return\nmain()\n",
        5,
    ),
    "exit with what main returns": (
        "import sys\ndef main():\n    look()\n    return 0\nsys.exit(main())\n",
        4,
    ),
    "raise SystemExit": ("def main():\n    look()\n    return 0\nraise SystemExit(main())\n", 3),
    "destroy after it": (
        "def train():\n    look()\n    return\n"
        "def main():\n    train()\n    dist.destroy_process_group()\nmain()\n",
        3,
    ),
    "a function that destroys": (
        "def cleanup():\n    if dist.is_initialized():\n        dist.destroy_process_group()\n"
        "def train():\n    look()\n    return\n"
        "def main():\n    try:\n        train()\n    finally:\n        cleanup()\nmain()\n",
        6,
    ),
    "a barrier and a print": (
        "def train():\n    look()\n    return\n"
        "train()\ndist.barrier()\nprint(f'{__name__} done')\n",
        3,
    ),
    "something that might notice": (
        "def train():\n    look()\n    return\ntrain()\nprint(dist.memory())\n",
        5,
    ),
    "a loop": ("def train():\n    look()\n    return\nfor _ in range(2):\n    train()\n", 4),
    "a with block": (
        "import contextlib\ndef train():\n    look()\n    return\n"
        "with contextlib.nullcontext():\n    train()\n",
        5,
    ),
    "a comprehension": ("def train():\n    look()\n    return\nx = [train() for _ in 'ab']\n", 4),
    "the second of two calls": (
        "def train():\n    look()\n    return\ndef twice():\n    train()\n    train()\ntwice()\n",
        3,
    ),
}


class Dist:
    """Stands for `torch.distributed`."""

    def destroy_process_group(self) -> None:
        pass

    is_initialized = barrier = memory = destroy_process_group


OURS = """\
def look():
    found.append(last_frame(found[-1]))
def run():
    try:
        exec(program, names)
    except SystemExit:
        pass
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_line_at_which_a_program_has_left(name: str) -> None:
    source, line = PROGRAMS[name]
    found: list[FrameType | None] = [None]
    ours = {"__name__": "kernbench.as_if", "found": found, "last_frame": last_frame}
    exec(OURS, ours)
    ours["program"] = compile(source, "script.py", "exec")
    ours["names"] = {"__name__": "a_script", "look": ours["look"], "dist": Dist()}
    loop = EventLoop()
    loop.start(cast(Any, ours["run"]), owner=loop.owner(0), name="rank 0")
    loop.run()
    frame = found[-1]
    assert frame is not None
    assert (frame.f_code.co_filename, frame.f_lineno) == ("script.py", line)
