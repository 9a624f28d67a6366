"""Random kernels are refused where Triton's own compiler refuses them, and nowhere else (K12)."""

import importlib.util
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from test_tl_grammar import checked
from tl_machine import Machine
from triton_compiler import refusals

from kernbench.tl.launch import Kernel
from kernbench.tl.operands import TileOperandError
from kernbench.tl.typed import CompilationError
from kernbench.topology import Topology

_HEAD: Final = """\
from kernbench import tl

M = tl.constexpr(16)


@tl.jit
def helper(v):
    return v + 1


def kernel(x, h, n, f, B: tl.constexpr):
"""

_PLACES: Final = ("0", "n", "tl.arange(0, B)")
_LOOPS: Final = (
    "range(n)",
    "range(n, 0, -1)",
    "range(0, 4)",
    "tl.range(0, n, B)",
    "tl.static_range(2)",
)


class Writer:
    """Writes kernels.

    Args:
        seed: Which one.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def expression(self, names: Sequence[str], depth: int = 0) -> str:
        """Returns an expression of variables; `depth` is how far it is inside of another one."""

        def inner() -> str:
            return self.expression(names, depth + 1)

        pick = self._random.choice
        if depth > 2 or self._random.random() < 0.35:
            return pick([*names, "0", "2", "0.5", "1.0", "n", "f", "B", "M"])
        made: Sequence[Callable[[], str]] = (
            lambda: f"({inner()} {pick('+-*')} {inner()})",
            lambda: f"({inner()} {pick('+-*')} {inner()})",
            lambda: f"({inner()} {pick(['<', '>=', '=='])} {inner()})",
            lambda: "tl.arange(0, B)",
            lambda: "tl.zeros((B,), tl.float32)",
            lambda: f"tl.load(x + {pick(_PLACES)})",
            lambda: "tl.sum(tl.arange(0, B), 0)",
            lambda: f"({inner()} if {pick(['n > 2', 'B > 3', 'f > 1.0'])} else {inner()})",
            lambda: f"tl.where({inner()} > 1, {inner()}, {inner()})",
            lambda: f"helper({inner()})",
            lambda: f"({inner()}).to(tl.{pick(['int32', 'float32'])})",
            lambda: f"max({inner()}, {inner()})",
        )
        return pick(made)()

    def block(self, names: Sequence[str], indent: int = 1) -> tuple[list[str], list[str]]:
        """Returns the lines of a block and the variables that it may leave behind."""
        pick, lines, known = self._random.choice, list[str](), list(names)
        space = "    " * indent
        for _ in range(self._random.randint(1, 3)):
            kind, name = self._random.random(), pick("abcd")
            value = self.expression(known)
            inside = [*known, "i"]
            if kind < 0.06:
                lines.append(f"{space}{name}: tl.constexpr = {pick(['4', 'B * 2', 'M'])}")
            elif kind < 0.2 and name in known:
                lines.append(f"{space}{name} {pick('+*-')}= {value}")
            elif kind < 0.52 or indent > 3:
                lines.append(f"{space}{name} = {value}")
                known += [] if name in known else [name]
            elif kind < 0.6:
                lines.append(f"{space}tl.store(x + {pick(_PLACES)}, {value})")
            elif kind < 0.75:
                lines.append(f"{space}if {pick(['n > 2', 'B > 3', 'B > 30', value])}:")
                body, then = self.block(known, indent + 1)
                lines += [*body, f"{space}else:"]
                body, otherwise = self.block(known, indent + 1)
                lines += body
                known += [each for each in then if each in otherwise and each not in known]
            elif kind < 0.9:
                lines.append(f"{space}for i in {pick(_LOOPS)}:")
                lines += self.block(inside, indent + 1)[0]
            elif kind < 0.95:
                lines.append(f"{space}while {pick(['n > 2', value])}:")
                lines += self.block(known, indent + 1)[0]
            else:
                lines.append(f"{space}return")
        return lines, known


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("first", range(0, 800, 100))
def test_random_kernels(topology: Callable[[str], Topology], tmp_path: Path, first: int) -> None:
    pytest.importorskip("triton")
    machine = Machine(topology("sip8"))
    paths = []
    for seed in range(first, first + 100):
        paths.append(tmp_path / f"kernel{seed}.py")
        paths[-1].write_text(_HEAD + "\n".join(Writer(seed).block([])[0]) + "\n")
    accepted = 0
    for path, theirs in zip(paths, refusals([(path, "kernel") for path in paths]), strict=True):
        ours = None
        try:
            checked(machine, Kernel(_loaded(path).kernel))
        except (CompilationError, TileOperandError) as error:
            ours = str(error)
        text = f"{path.read_text()}\nonly one refuses it: {theirs or ours}"
        assert (ours is None) is (theirs is None), text
        accepted += ours is None
    assert 20 < accepted < 95


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
