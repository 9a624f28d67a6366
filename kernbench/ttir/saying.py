"""Operations by which a kernel says something: prints and assertions."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from kernbench.ttir.arithmetic import unsigned
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import Frame, ProgramError, Step
from kernbench.ttir.module import Operation
from kernbench.ttir.sums import plain
from kernbench.ttir.tiles import full


def _assert(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    condition = operation.operands[0]
    message = next(iter(operation.words), "")

    def step(frame: Frame) -> None:
        held = plain(frame.values[condition.number])
        if held.all():
            return
        place = tuple(int(axis) for axis in np.argwhere(~held)[0])
        program = int(frame.programs[place[0] if held.shape[0] > 1 else 0])
        raise ProgramError("assert", operation, message, program, place[1:])

    return step


def _decimal(number: np.generic) -> str:
    return str(number.item())


def _hexadecimal(number: np.generic) -> str:
    """Returns the bits of a number."""
    return f"0x{int.from_bytes(number.tobytes(), 'little'):0{2 * number.itemsize}x}"


def _print(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    prefix = next(iter(operation.words), "")
    sources = operation.operands
    signs = operation.attributes.get("isSigned", ())
    signed = [one != 0 for one in signs] if isinstance(signs, tuple) else []
    shown = _hexadecimal if operation.attributes.get("hex") is True else _decimal

    def step(frame: Frame) -> None:
        arrays = [
            np.broadcast_to(
                full(frame.values[each.number], each.type), (frame.count, *each.type.shape)
            )
            for each in sources
        ]
        for place, sign in enumerate(signed):
            if not sign and arrays[place].dtype.kind == "i":
                arrays[place] = unsigned(arrays[place])
        for place, program in enumerate(frame.programs):
            where = ", ".join(map(str, frame.launch.program(int(program))))
            if not arrays:
                frame.launch.say(f"pid ({where}){prefix}")
            for array in arrays:
                for lane in np.ndindex(array.shape[1:]):
                    at = ", ".join(map(str, lane))
                    value = shown(array[(place, *lane)])
                    frame.launch.say(f"pid ({where}) idx ({at}){prefix}{value}")

    return step


HANDLERS: Final[Mapping[str, Handler]] = {"tt.assert": _assert, "tt.print": _print}
"""Steps of prints and assertions."""
