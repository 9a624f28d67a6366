"""The frame whose return tells where a rank has left, though a `main()` stands around it."""

import dis
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

from kernbench.caches import Table
from kernbench.des import is_outermost
from kernbench.errors import is_ours, is_skipped, users_frames

_HARMLESS: Final = frozenset(
    (
        "barrier",
        "destroy_process_group",
        "exit",
        "is_available",
        "is_initialized",
        "print",
        "synchronize",
        "SystemExit",
        "_exit",
    )
)
"""Names of what ranks call when they have done all their work."""

_LOADS: Final = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"))
_ENDS: Final = frozenset(("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS"))
_STRANGE: Final = frozenset(("YIELD_VALUE", "SEND", "RERAISE"))

_DEPTH: Final = 2
"""How many calls deep a function is followed."""

_known: Final[Table[tuple[int, int], tuple[CodeType, bool]]] = Table("process.last_frames")
"""Whether a place has nothing but leaving behind it; with the code, so that its `id` is its own."""


def last_frame(before: FrameType | None) -> FrameType | None:
    """Returns the innermost frame of the running stack after whose return the rank only leaves.

    A script often ends with `main()`, and `main` with `destroy_process_group()`. Then the line at
    which `main`, or what it called last, returned says why the rank has left, and the script's own
    line does not. Who keeps a frame keeps its variables. So the frame is the outermost one of the
    user, or one after which the rank does nothing that could notice them.

    If no frame is the user's, the outermost one of a library is returned.

    Args:
        before: What the last call for the rank returned; it stays if it has ended, since the rank
            then only leaves.
    """
    if before is not None and not is_skipped(before):
        # Every collective comes here. While this frame runs, nothing around it goes on.
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not before:
            frame = frame.f_back
        if frame is not None and not _then_leaves(before):
            return before
    stack = users_frames()
    if before is not None and before not in stack and not is_skipped(before):
        return before
    if not stack:
        return _outermost_of_a_library()
    found = stack.pop()
    while stack and _then_leaves(found):
        found = stack.pop()
    return found


def _outermost_of_a_library() -> FrameType | None:
    found: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_outermost(frame):
        found = found if is_ours(frame) else frame
        frame = frame.f_back
    return found


def _then_leaves(frame: FrameType) -> bool:
    """Returns whether a frame that is in a call only leaves when the call is over."""
    code, place = frame.f_code, frame.f_lasti
    known = _known.get((id(code), place))
    if known is None:
        leaves = _only_leaves(code, place, frame.f_globals, _DEPTH)
        known = _known.keep((id(code), place), (code, leaves))
    return known[1]


def _only_leaves(code: CodeType, place: int, names: Mapping[str, Any], depth: int) -> bool:
    """Returns whether each call that may follow a place, up to a return, is harmless."""
    every = list(dis.get_instructions(code))
    harmless = sum(each.argval in _HARMLESS for each in _before_on_its_line(every, place))
    for instruction in _following(every, place):
        name = instruction.opname
        if name in _STRANGE:
            return False
        if name in _LOADS:
            harmless += _is_harmless(instruction.argval, names, depth)
        elif name.startswith("CALL") and not name.startswith("CALL_INTRINSIC"):
            harmless -= 1
    return harmless >= 0


def _before_on_its_line(every: list[dis.Instruction], place: int) -> list[dis.Instruction]:
    """Returns what was loaded before a place in its line, such as `exit` in `exit(main())`."""
    found: list[dis.Instruction] = []
    for instruction in every:
        if instruction.offset >= place:
            break
        if instruction.starts_line is not None:
            found.clear()
        if instruction.opname in _LOADS:
            found.append(instruction)
    return found


def _following(every: list[dis.Instruction], place: int) -> Iterator[dis.Instruction]:
    """Yields the instructions that may run after a place, up to a return."""
    numbers = {instruction.offset: number for number, instruction in enumerate(every)}
    todo, seen = [next(n for n, each in enumerate(every) if each.offset > place)], set()
    while todo:
        number = todo.pop()
        if number in seen:
            continue
        seen.add(number)
        instruction = every[number]
        yield instruction
        if instruction.opname in _ENDS:
            continue
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            todo.append(numbers[instruction.argval])
            if instruction.opname.startswith("JUMP"):
                continue
        todo.append(number + 1)


def _is_harmless(name: str, names: Mapping[str, Any], depth: int) -> bool:
    """Returns whether to call what a name stands for is harmless."""
    if name in _HARMLESS:
        return True
    function = names.get(name)
    if not depth or not isinstance(function, FunctionType):
        return False
    return _only_leaves(function.__code__, -1, function.__globals__, depth - 1)
