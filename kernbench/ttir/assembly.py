"""Inline assembly of kernels: some instructions of PTX that work on registers.

The text and its constraints are read when the kernel is compiled, and each instruction becomes a
function of registers, which hold the bits of all elements. Source of what they do: PTX ISA 8.5,
section 9.7.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from kernbench.ttir.arithmetic import FLOATING, Array, high_half, not_known, rounded, to_whole
from kernbench.ttir.bits import leading_zeros, looked_up, permuted_octets, reversed_bits
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.module import Operation
from kernbench.ttir.tiles import full
from kernbench.ttir.types import Type

Registers = dict[str, Array]
Instruction = Callable[[Registers], None]

_BITS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_TYPES: Final[Mapping[str, np.dtype[Any]]] = {
    **{f"b{8 * size}": np.dtype(kind) for size, kind in _BITS.items()},
    **{f"u{8 * size}": np.dtype(kind) for size, kind in _BITS.items()},
    **{f"s{8 * size}": np.dtype(f"int{8 * size}") for size in _BITS},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


_OF_ONE: Final[Mapping[str, Callable[[Array], Array]]] = {
    "abs": np.abs,
    "brev": reversed_bits,
    "clz": leading_zeros,
    "cos": np.cos,
    "ex2": np.exp2,
    "lg2": np.log2,
    "mov": lambda a: a,
    "neg": np.negative,
    "not": np.invert,
    "popc": lambda a: np.bitwise_count(a).astype(np.uint32),
    "rcp": lambda a: a.dtype.type(1) / a,
    "rsqrt": FLOATING["rsqrt"],
    "sin": np.sin,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
_OF_TWO: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "div": np.divide,
    "or": np.bitwise_or,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}
_PAIRS: Final = frozenset({"bf16x2", "f16x2"})
"""Types of two numbers that share a register."""

_MODIFIERS: Final = frozenset({"approx", "ftz", "full", "lo", "rn", "rni", "rz", "rzi", "sat"})
_OF_THE_GPU: Final = re.compile(
    r"%(?:clock|ctaid|globaltimer|gridid|laneid|lanemask|nctaid|nsmid|ntid|nwarpid|pm|smid|tid|warpid)"
)
"""Registers of which a GPU tells what nobody simulates: where a program runs, and when."""
_GUARD: Final = re.compile(r"@(!?)([\w$%]+)\s+(.*)", re.DOTALL)
"""What an instruction depends on: whether on the opposite, the predicate, and the instruction."""

_COMPARED: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
}
_ROUNDED_DOWN: Final = frozenset({"rz", "rzi"})


class Assembly:
    """Instructions of inline assembly, ready to run.

    Raises:
        UnsupportedError: If an instruction is not simulated.
    """

    def __init__(self, operation: Operation) -> None:
        self._operation: Final = operation
        text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", operation.words[0], flags=re.DOTALL)
        self._steps: Final[list[Instruction]] = []
        self._predicates: Final[set[str]] = set()
        for line in text.split(";"):
            words = line.strip()
            while re.match(r"[{}](?!\s*[\w$%]+\s*,)", words):  # blocks; no vectors of registers
                words = words[1:].strip()
            if words and not words.startswith(".reg"):
                self._steps.append(self._instruction(words))

    def __call__(self, registers: Registers) -> None:
        """Runs all instructions on registers, which it changes."""
        for step in self._steps:
            step(registers)

    def _instruction(self, line: str) -> Instruction:
        guard = _GUARD.match(line)
        if guard is not None:
            if guard[2] not in self._predicates:
                raise not_known(self._operation, f"the instruction {line!r}")
            return _guarded(self._instruction(guard[3]), guard[2], negated=bool(guard[1]))
        name, _, rest = line.partition(" ")
        kind, *said = name.split(".")
        operands = [each.strip() for each in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)]
        pairs = len(said) > 0 and said[-1] in _PAIRS
        said = [word.removesuffix("x2") for word in said] if pairs else said
        types = [_TYPES[word] for word in said if word in _TYPES]
        others = {word for word in said if word not in _TYPES}
        if not types or re.search(_OF_THE_GPU, rest):
            raise not_known(self._operation, f"the instruction {line!r}")
        made = None if pairs else self._special(kind, operands, types, others)
        if made is None and others <= _MODIFIERS:
            made = _computed(kind, operands, types[-1], pairs=pairs)
        if made is None:
            raise not_known(self._operation, f"the instruction {name}")
        return made

    def _special(
        self, kind: str, operands: Sequence[str], types: Sequence[np.dtype[Any]], others: set[str]
    ) -> Instruction | None:
        """Returns an instruction with a form of its own; None if it has none."""
        target, *sources = operands
        if kind == "mov" and target.startswith("{"):
            return _unpacking(_names(target), sources[0], types[-1])
        if kind == "mov" and sources[0].startswith("{"):
            return _packing(target, _names(sources[0]), types[-1])
        if kind == "cvt":
            return _converting(target, sources, types, others)
        if kind == "shf" and others & {"l", "r"} and others <= {"l", "r", "wrap", "clamp"}:
            return _funnel(target, sources, left="l" in others, clamp="clamp" in others)
        if kind == "setp" and len(others) == 1 and len(sources) == 2:
            self._predicates.add(target)
            return _comparing(target, sources, types[-1], *others)
        if kind == "selp" and not others and len(sources) == 3 and sources[2] in self._predicates:
            return _selecting(target, sources, types[-1])
        if kind in ("lop3", "prmt") and not others and types == [_TYPES["b32"]]:
            return _of_words(kind, target, sources)
        if kind in ("mul", "mad") and "hi" in others and types[-1].kind == "u":
            return _upper(target, sources, types[-1])
        return None


def _guarded(made: Instruction, predicate: str, *, negated: bool) -> Instruction:
    """Returns an instruction that leaves registers alone where a predicate does not hold."""

    def step(registers: Registers) -> None:
        before, active = dict(registers), registers[predicate].astype(bool) ^ negated
        made(registers)
        for name, found in registers.items():
            kept = before.get(name)
            if found is not kept:
                nothing = found.dtype.type(0)  # nobody defines a register that nothing has set
                registers[name] = np.where(active, found, nothing if kept is None else kept)

    return step


def _comparing(
    target: str, sources: Sequence[str], dtype: np.dtype[Any], how: str
) -> Instruction | None:
    """Returns `setp`; None for a comparison that is not known, such as one that a NaN fulfils."""
    function = _COMPARED.get(how)
    if function is None or "|" in target:
        return None
    known, ordered = function, how == "ne" and dtype.kind not in "iu"

    def step(registers: Registers) -> None:
        a, b = (_value(registers, name, dtype) for name in sources)
        found = known(a, b)
        # In PTX, nothing is true of a NaN; in numpy, that it differs is.
        registers[target] = found & ~(np.isnan(a) | np.isnan(b)) if ordered else found

    return step


def _selecting(target: str, sources: Sequence[str], dtype: np.dtype[Any]) -> Instruction:
    def step(registers: Registers) -> None:
        a, b = (_value(registers, name, dtype) for name in sources[:2])
        _kept(registers, target, np.where(registers[sources[2]].astype(bool), a, b))

    return step


def _names(vector: str) -> list[str]:
    return [name.strip() for name in vector.strip("{}").split(",")]


def _value(registers: Registers, name: str, dtype: np.dtype[Any]) -> Array:
    """Returns what an operand holds: a register, cut or filled with zeros, or a constant."""
    bits = _BITS[dtype.itemsize]
    held = registers.get(name)
    if held is not None:
        return held.astype(bits, copy=False).view(dtype)
    if re.match(r"0[fF][0-9A-Fa-f]{8}$", name):
        return np.array([int(name[2:], 16)], np.uint32).view(np.float32).astype(dtype)
    if dtype.kind not in "iu":
        return np.array([float(name)]).astype(dtype)
    number = int(name.rstrip("Uu"), 0) & ((1 << 8 * dtype.itemsize) - 1)
    return np.array([number], bits).view(dtype)


def _kept(registers: Registers, name: str, value: Array) -> None:
    registers[name] = np.ascontiguousarray(value).view(_BITS[value.dtype.itemsize])


def _computed(
    kind: str, operands: Sequence[str], dtype: np.dtype[Any], *, pairs: bool
) -> Instruction | None:
    """Returns an instruction all of whose operands have one type; None if it is not known.

    Args:
        dtype: The type.
        pairs: Whether a register holds two numbers of it.
    """
    target, *sources = operands
    function: Callable[..., Array] | None = None
    if len(sources) == 1:
        function = _OF_ONE.get(kind)
    elif kind in ("shl", "shr") and len(sources) == 2:
        return _shifting(kind, target, sources, dtype)
    elif kind in ("min", "max") and len(sources) == 2:
        least = kind == "min"
        floating = np.fmin if least else np.fmax  # a NaN is left out
        function = (np.minimum if least else np.maximum) if dtype.kind in "iu" else floating
    elif kind == "mul" and len(sources) == 2:
        function = np.multiply
    elif kind in ("fma", "mad") and len(sources) == 3:
        function = FLOATING["fma"] if dtype.kind not in "iu" else lambda a, b, c: a * b + c
    elif len(sources) == 2:
        function = _OF_TWO.get(kind)
        if kind == "div" and dtype.kind in "iu":
            function = None
    if function is None:
        return None
    known = function
    if pairs:
        return _pairwise(known, target, sources, dtype)

    def step(registers: Registers) -> None:
        found = known(*(_value(registers, name, dtype) for name in sources))
        _kept(registers, target, found if kind in ("clz", "popc") else found.astype(dtype))

    return step


def _pairwise(
    function: Callable[..., Array], target: str, sources: Sequence[str], dtype: np.dtype[Any]
) -> Instruction:
    """Returns an instruction on both halves of words."""

    def step(registers: Registers) -> None:
        words = [_value(registers, name, _TYPES["b32"])[..., None] for name in sources]
        found = function(*(np.ascontiguousarray(word).view(dtype) for word in words))
        halves = np.ascontiguousarray(found.astype(dtype))
        _kept(registers, target, halves.view(np.uint32)[..., 0])

    return step


def _of_words(kind: str, target: str, sources: Sequence[str]) -> Instruction | None:
    """Returns `prmt` or `lop3`; None if what it has of operands is not known."""
    if len(sources) != (3 if kind == "prmt" else 4):
        return None
    table = int(sources[3], 0) if kind == "lop3" else 0

    def step(registers: Registers) -> None:
        a, b, c = (_value(registers, name, _TYPES["b32"]) for name in sources[:3])
        found = permuted_octets(a, b, c) if kind == "prmt" else looked_up(a, b, c, table)
        _kept(registers, target, found)

    return step


def _shifting(kind: str, target: str, sources: Sequence[str], dtype: np.dtype[Any]) -> Instruction:
    """Returns a shift; one by the width or more leaves nothing but the sign."""

    def step(registers: Registers) -> None:
        value, by = (
            _value(registers, sources[0], dtype),
            _value(registers, sources[1], _TYPES["u32"]),
        )
        width = 8 * dtype.itemsize
        near = np.minimum(by, width - 1).astype(dtype)
        if kind == "shl":
            found = np.where(by < width, value << near, dtype.type(0))
        else:
            found = value >> near
            found = found if dtype.kind == "i" else np.where(by < width, found, dtype.type(0))
        _kept(registers, target, found.astype(dtype))

    return step


def _funnel(target: str, sources: Sequence[str], *, left: bool, clamp: bool) -> Instruction:
    """Returns `shf`: a shift of two words, of which one comes out."""
    kind = _TYPES["u32"]

    def step(registers: Registers) -> None:
        low, high, by = (_value(registers, name, kind).astype(np.uint64) for name in sources)
        by = np.minimum(by, np.uint64(32)) if clamp else by & np.uint64(31)
        both = high << np.uint64(32) | low
        found = both << by >> np.uint64(32) if left else both >> by
        if left:  # at 32 the lower word is all that is left
            found = np.where(by == 32, low, found)
        _kept(registers, target, (found & np.uint64(0xFFFFFFFF)).astype(np.uint32))

    return step


def _upper(target: str, sources: Sequence[str], dtype: np.dtype[Any]) -> Instruction:
    def step(registers: Registers) -> None:
        a, b, *c = (_value(registers, name, dtype) for name in sources)
        a, b = np.broadcast_arrays(a, b)
        found = high_half(a, b)
        _kept(registers, target, found + c[0] if c else found)

    return step


def _unpacking(names: Sequence[str], source: str, dtype: np.dtype[Any]) -> Instruction:
    part = _BITS[dtype.itemsize // len(names)]

    def step(registers: Registers) -> None:
        value = np.ascontiguousarray(_value(registers, source, dtype))
        for name, column in zip(names, value.view(part).reshape(-1, len(names)).T, strict=True):
            registers[name] = np.ascontiguousarray(column)

    return step


def _packing(target: str, names: Sequence[str], dtype: np.dtype[Any]) -> Instruction:
    part = np.dtype(_BITS[dtype.itemsize // len(names)])

    def step(registers: Registers) -> None:
        columns = np.broadcast_arrays(*(_value(registers, name, part) for name in names))
        _kept(
            registers, target, np.ascontiguousarray(np.stack(columns, axis=-1)).view(dtype)[..., 0]
        )

    return step


def _converting(
    target: str, sources: Sequence[str], types: Sequence[np.dtype[Any]], others: set[str]
) -> Instruction | None:
    """Returns `cvt`: of one number, or of two into the halves of a word."""
    if len(types) != 2 or not others <= {*_MODIFIERS, "satfinite"}:
        return None
    to, given = types
    down, width = bool(others & _ROUNDED_DOWN), to.itemsize

    def converted(a: Array) -> Array:
        if to.kind in "iu":
            if given.kind in "iu":
                return a.astype(to)
            a = a if down else np.rint(a.astype(np.float64))
            return to_whole(a, np.dtype(f"int{8 * width}"), signed=to.kind == "i").view(to)
        name = "bf16" if to == _TYPES["bf16"] else f"f{8 * width}"
        return rounded(a, name, down=down)

    def step(registers: Registers) -> None:
        _kept(registers, target, converted(_value(registers, sources[0], given)))

    return step if len(sources) == 1 else None


# Registers and tiles: elements of less than 32 bits share a register if several go together.


def _columns(array: Array, pack: int) -> list[Array]:
    size = array.dtype.itemsize
    each = max(1, 4 // size) if pack > 1 else 1
    rows = np.ascontiguousarray(array).reshape(-1, pack // each, each)
    bits = rows.view(_BITS[size * each])[..., 0]
    return [np.ascontiguousarray(column) for column in bits.T]


def _assembly(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    run = Assembly(operation)
    pack = int(operation.attributes["packed_element"])  # type: ignore[arg-type]
    sources, results = operation.operands, operation.results
    kinds = [result.type for result in results]
    outputs = str(operation.attributes["constraints"]).count("=")

    def step(frame: Frame) -> None:
        arrays = [full(frame.values[each.number], each.type) for each in sources]
        count = max((array.shape[0] for array in arrays), default=1)
        arrays = [np.broadcast_to(array, (count, *array.shape[1:])) for array in arrays]
        given = [column for array in arrays for column in _columns(array, pack)]
        registers = {f"${place}": one for place, one in enumerate(given, outputs)}
        run(registers)
        place = 0
        for result, kind in zip(results, kinds, strict=True):
            found, used = _tile(registers, place, kind, count, pack)
            place += used
            frame.values[result.number] = found

    return step


def _tile(registers: Registers, first: int, kind: Type, count: int, pack: int) -> tuple[Array, int]:
    """Returns the tile that registers hold, and how many registers."""
    size = kind.dtype.itemsize
    each = max(1, 4 // size) if pack > 1 else 1
    used = pack // each
    bits = _BITS[size * each]
    columns = [
        np.broadcast_to(registers[f"${first + place}"].astype(bits), (count * kind.numel // pack,))
        for place in range(used)
    ]
    rows = np.ascontiguousarray(np.stack(columns, axis=-1)).view(kind.dtype)
    return rows.reshape(count, *kind.shape), used


HANDLERS: Final[Mapping[str, Handler]] = {"tt.elementwise_inline_asm": _assembly}
"""Steps of inline assembly."""
