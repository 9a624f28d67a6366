"""Types, values and refusals of the kernel language are those of Triton's interpreter.

Both run the same expressions on the same numbers. What Triton's interpreter does not compute (it
holds bfloat16 and 8-bit floats as whole numbers) is compared by type only; `test_tl_types.py` has
an oracle of its own for these.
"""

import operator
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from tl_machine import Machine
from triton_interpreter import interpreted

from kernbench import tl as ours
from kernbench.memory import dtypes
from kernbench.tl.launch import jit
from kernbench.tl.operands import TileOperandError
from kernbench.tl.tile import Tile
from kernbench.topology import Topology

torch: Any = pytest.importorskip("torch")
triton: Any = pytest.importorskip("triton")
theirs: Any = pytest.importorskip("triton.language")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
]

NAMES = {
    "fp64": dtypes.float64,
    "fp32": dtypes.float32,
    "fp16": dtypes.float16,
    "bf16": dtypes.bfloat16,
    "fp8e4nv": dtypes.float8_e4m3fn,
    "fp8e5": dtypes.float8_e5m2,
    "int64": dtypes.int64,
    "int32": dtypes.int32,
    "int16": dtypes.int16,
    "int8": dtypes.int8,
    "uint64": dtypes.uint64,
    "uint32": dtypes.uint32,
    "uint16": dtypes.uint16,
    "uint8": dtypes.uint8,
    "int1": dtypes.bool_,
}
"""Triton's names of types."""

UNCOMPUTED = {dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.float8_e5m2}
LOADED = [d for d in NAMES.values() if d not in (dtypes.uint16, dtypes.uint32, dtypes.uint64)]


@pytest.fixture(scope="session")
def machine(topology: Callable[[str], Topology]) -> Machine:
    return Machine(topology("sip8"), recorded=False)


class Outcome(NamedTuple):
    """What became of an expression: a type and values, or an error."""

    dtype: Any
    values: Any
    error: str = ""


def numbers(dtype: Any, seed: int) -> np.ndarray[Any, Any]:
    """Returns 32 numbers of a type: its ends, and some between them."""
    draw = np.random.default_rng(seed)
    if dtype is dtypes.bool_:
        return draw.integers(0, 2, 32).astype(np.bool_)
    if dtype.is_floating_point:
        ends = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -2.5, np.inf, -np.inf, np.nan]
        some = draw.normal(0, 4, 22)
        return draw.permutation(np.array([*ends, *some])).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    ends = [info.min, info.max, 0, 1, info.max // 3, info.min // 3 or 2, 7, 100]
    some = draw.integers(info.min, info.max, 24, dtype.numpy, endpoint=True)
    some[:12] %= dtype.numpy.type(11)
    return draw.permutation(np.concatenate([np.array(ends, dtype.numpy), some]))


def to_torch(values: np.ndarray[Any, Any]) -> Any:
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    if values.dtype == ml_dtypes.float8_e4m3fn:
        return torch.from_numpy(values.view(np.uint8)).view(torch.float8_e4m3fn)
    if values.dtype == ml_dtypes.float8_e5m2:
        return torch.from_numpy(values.view(np.uint8)).view(torch.float8_e5m2)
    return torch.from_numpy(values)


Expression = Callable[..., Any]


def outcome(compute: Callable[[], Any], language: Any) -> Outcome:
    with np.errstate(all="ignore"):
        try:
            found = compute()
        except TileOperandError as error:
            return Outcome(None, None, str(error).splitlines()[0])
        except Exception as error:
            if language is ours:
                raise
            return Outcome(None, None, repr(error))
    if language is ours:
        assert isinstance(found, Tile)
        assert found.values is not None
        assert found.values.dtype == found.dtype.numpy
        assert found.values.shape == found.shape
        return Outcome(found.dtype, found.values)
    dtype = NAMES[found.dtype.name]
    values = found.handle.data
    shape = tuple(int(each) for each in found.shape)
    return Outcome(dtype, values.reshape(shape) if dtype not in UNCOMPUTED else values)


OURS: list[Outcome] = []
THEIRS: list[Outcome] = []
PLAN: list[tuple[str, Expression]] = []


@jit
def our_kernel(x: Any, y: Any, i: Any, j: Any, f: Any, t: Any) -> None:
    lanes = ours.arange(0, 32)
    forms = {
        "x": ours.load(x + lanes), "y": ours.load(y + lanes), "x0": ours.load(x + 3),
        "y0": ours.load(y + 5), "lanes": lanes, "i": i, "j": j, "f": f, "t": t,
        "pid": ours.program_id(0), "px": x,
    }  # fmt: skip
    for _, expression in PLAN:
        OURS.append(outcome(partial(expression, ours, forms), ours))


def in_triton(x: Any, y: Any, i: Any, j: Any, f: Any, t: Any) -> None:
    lanes = theirs.arange(0, 32)
    f = theirs.full((), f, theirs.float32)  # the compiler does so; the interpreter keeps Python's
    forms = {
        "x": theirs.load(x + lanes), "y": theirs.load(y + lanes), "x0": theirs.load(x + 3),
        "y0": theirs.load(y + 5), "lanes": lanes, "i": i, "j": j, "f": f, "t": t,
        "pid": theirs.program_id(0), "px": x,
    }  # fmt: skip
    for _, expression in PLAN:
        THEIRS.append(outcome(partial(expression, theirs, forms), theirs))


THEIR_KERNEL: list[Any] = []


@pytest.fixture(autouse=True, scope="module")
def interpreting() -> Iterator[None]:
    with interpreted() as made:
        THEIR_KERNEL[:] = [made(in_triton)]
        yield


def compared(
    machine: Machine,
    plan: list[tuple[str, Expression]],
    x: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
) -> list[tuple[str, Outcome, Outcome]]:
    """Runs expressions in both languages."""
    PLAN[:] = plan
    OURS.clear()
    THEIRS.clear()
    arguments: dict[str, Any] = {"i": -7, "j": 2**40 + 3, "f": 0.3, "t": True}
    machine.launch(our_kernel, x=machine.tensor(x), y=machine.tensor(y), **arguments)
    THEIR_KERNEL[0][(1,)](to_torch(x.copy()), to_torch(y.copy()), **arguments)
    return [(name, a, b) for (name, _), a, b in zip(plan, OURS, THEIRS, strict=True)]


def check(found: list[tuple[str, Outcome, Outcome]], *, valued: bool = True) -> None:
    """Compares outcomes: refusals, types, shapes, and values bit for bit except for NaN's bits."""
    wrong = []
    for name, mine, their in found:
        if "ufunc" in their.error or "Python integer" in their.error:
            continue  # numpy refused it inside of the interpreter, not Triton
        if their.error or mine.error:
            if bool(their.error) != bool(mine.error):
                shown = mine.error or mine.dtype, their.error or their.dtype
                wrong.append(f"{name}: here {shown[0]}, there {shown[1]}")
        elif mine.dtype is not their.dtype:
            wrong.append(f"{name}: {mine.dtype} here, {their.dtype} there")
        elif valued and mine.dtype not in UNCOMPUTED:
            a, b = mine.values, their.values
            if mine.dtype is dtypes.bool_:
                b = b & 1  # the interpreter keeps one bit in a byte
            if not mine.dtype.is_floating_point:
                b = b.astype(a.dtype)  # ... and may keep unsigned numbers as signed ones
            if a.shape != b.shape:
                wrong.append(f"{name}: shape {a.shape} here, {b.shape} there")
                continue
            same = (a == b) | (np.not_equal(a, a) & np.not_equal(b, b))
            if not same.all():
                bad = np.flatnonzero(~same.ravel())[:3]
                wrong.append(f"{name}: {a.ravel()[bad]} here, {b.ravel()[bad]} there")
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong[:40])


BINARY = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
NUMBERS = [0, 1, 2, 3, -3, 200, 70_000, 2**31, 2**40, True, False, 0.5, -2.0, 1e-40, 1e300]


def binary(name: str, left: Any, right: Any) -> tuple[str, Expression]:
    def expression(tl: Any, forms: dict[str, Any]) -> Any:
        a, b = (forms[each] if isinstance(each, str) else each for each in (left, right))
        if name in BINARY:
            return BINARY[name](a, b)
        if name == "where":
            return tl.where(forms["lanes"] > 7, a, b)
        return getattr(tl, name)(a, b)

    return f"{name}({left!r}, {right!r})", expression


DIVISIONS = ["//", "%"]
OTHERS = [*(set(BINARY) - set(DIVISIONS)), "where", "maximum", "minimum"]


def pairs(machine: Machine, lefts: list[Any], rights: list[Any], first: Any, second: Any) -> None:
    """Compares every function of every left with every right operand."""
    x, y = numbers(first, 1), numbers(second, 2)
    sides = list(product(lefts, rights))
    found = compared(machine, [binary(n, a, b) for n in OTHERS for a, b in sides], x, y)
    # What a division by 0 gives is undefined, so there is none.
    x, y = (np.where(v == 0, v.dtype.type(1), v) for v in (x, y))
    sides = [(a, b) for a, b in sides if b not in ("lanes", "pid") and (isinstance(b, str) or b)]
    found += compared(machine, [binary(n, a, b) for n in DIVISIONS for a, b in sides], x, y)
    valued = not {first, second} & UNCOMPUTED
    check([(f"{first} {second} {name}", a, b) for name, a, b in found], valued=valued)


@pytest.mark.parametrize("first", LOADED, ids=repr)
def test_pairs_of_tiles(machine: Machine, first: Any) -> None:
    for second in LOADED:
        pairs(machine, ["x"], ["y", "y0"], first, second)
        pairs(machine, ["x0"], ["y0"], first, second)


@pytest.mark.parametrize("first", LOADED, ids=repr)
def test_tiles_with_numbers_and_arguments(machine: Machine, first: Any) -> None:
    others = [*NUMBERS, "i", "j", "f", "t", "lanes"]
    pairs(machine, ["x"], others, first, first)
    pairs(machine, others, ["x"], first, first)


def test_arguments_indices_and_numbers_among_themselves(machine: Machine) -> None:
    pairs(
        machine,
        ["lanes", "pid", "i", "j", "t"],
        [*NUMBERS, "i", "j", "f", "t"],
        dtypes.int8,
        dtypes.int8,
    )
    pairs(machine, [*NUMBERS], ["i", "j", "f", "t"], dtypes.int8, dtypes.int8)


CASTS = ["float64", "float32", "float16", "bfloat16", "float8e4nv", "float8e5", "int64", "int32",
         "int16", "int8", "uint64", "uint32", "uint16", "uint8", "int1"]  # fmt: skip

UNARY: dict[str, Expression] = {
    "-": lambda tl, f: -f["x"],
    "~": lambda tl, f: ~f["x"],
    "-lanes": lambda tl, f: -f["lanes"],
    "~lanes": lambda tl, f: ~f["lanes"],
    "-i": lambda tl, f: -f["i"],
    "abs": lambda tl, f: tl.abs(f["x"]),
    "abs i": lambda tl, f: tl.abs(f["i"]),
    "cdiv": lambda tl, f: tl.cdiv(f["x"], 4),
    "cdiv i": lambda tl, f: tl.cdiv(f["i"], 4),
    "cdiv lanes": lambda tl, f: tl.cdiv(f["lanes"], 4),
    "exp": lambda tl, f: tl.exp(f["x"]),
    "exp f": lambda tl, f: tl.exp(f["f"]),
    "log": lambda tl, f: tl.log(f["x"]),
    "sqrt": lambda tl, f: tl.sqrt(f["x"]),
    "rsqrt": lambda tl, f: tl.rsqrt(f["x"]),
    "exp of 2": lambda tl, f: tl.exp(2.0),
    "where t": lambda tl, f: tl.where(f["t"], f["x"], f["i"]),
    "where x": lambda tl, f: tl.where(f["x"], 1, 0.5),
    "where numbers": lambda tl, f: tl.where(f["lanes"] > 3, 2, 0.5),
    "where truths": lambda tl, f: tl.where(f["lanes"] > 3, True, False),
    "where int and truth": lambda tl, f: tl.where(f["lanes"] > 3, True, 7),
    "sum": lambda tl, f: tl.sum(f["x"], 0),
    "sum all": lambda tl, f: tl.sum(f["x"]),
    "sum int32": lambda tl, f: tl.sum(f["x"], 0, dtype=tl.int32),
    "sum kept": lambda tl, f: tl.sum(f["x"][:, None], 0, keep_dims=True),
    "sum all kept": lambda tl, f: tl.sum(f["x"][:, None], keep_dims=True),
    "max": lambda tl, f: tl.max(f["x"], 0),
    "min": lambda tl, f: tl.min(f["x"], 0),
    "max all": lambda tl, f: tl.max(f["x"][:, None]),
    "max of columns": lambda tl, f: tl.max(f["x"][:, None], 1),
    "min kept": lambda tl, f: tl.min(f["x"][None, :], 1, keep_dims=True),
    "reshape": lambda tl, f: tl.reshape(f["x"], (4, 8)) + 1,
    "trans": lambda tl, f: tl.trans(tl.reshape(f["x"], (4, 8))),
    "rank": lambda tl, f: tl.reshape(f["x"], (4, 8)) == tl.arange(0, 8),
    "one": lambda tl, f: f["x"][None, :],
    "two": lambda tl, f: f["x"][:, None] == f["lanes"][None, :],
    "unequal": lambda tl, f: f["x"] == tl.arange(0, 16),
    "full": lambda tl, f: tl.full((4,), 3, tl.float16),
    "full -1": lambda tl, f: tl.full((4,), -1, tl.int8),
    "full fraction": lambda tl, f: tl.full((4,), 0.0, tl.int32),
    "full of f": lambda tl, f: tl.full((4,), f["f"], tl.float64),
    "full of i": lambda tl, f: tl.full((4,), f["i"], tl.float32),
    "full of a block": lambda tl, f: tl.full((4,), f["x"], tl.float32),
    "zeros": lambda tl, f: tl.zeros((4,), tl.int64),
    "arange": lambda tl, f: tl.arange(4, 8),
    "pid": lambda tl, f: tl.program_id(2),
    "pids": lambda tl, f: tl.num_programs(1),
    "pid of axis 3": lambda tl, f: tl.program_id(3),
    **{f"to {c}": lambda tl, f, c=c: f["x"].to(getattr(tl, c)) for c in CASTS},
    **{f"lanes to {c}": lambda tl, f, c=c: f["lanes"].to(getattr(tl, c)) for c in CASTS},
}


@pytest.mark.parametrize("first", LOADED, ids=repr)
def test_functions_of_one_tile(machine: Machine, first: Any) -> None:
    x = numbers(first, 3)
    # A float that no integer has, converted to one, is undefined.
    whole = {f"to {c}" for c in CASTS if "int" in c and c != "int1"} | {"sum int32"}
    plain = numbers(first, 3).clip(0, 100) if first is not dtypes.bool_ else x
    plain = np.where(np.isfinite(plain), plain, x.dtype.type(1))
    found = compared(machine, [e for e in UNARY.items() if e[0] not in whole], x, x)
    found += compared(machine, [e for e in UNARY.items() if e[0] in whole], plain, plain)
    check([(f"{first} {n}", a, b) for n, a, b in found], valued=first not in UNCOMPUTED)


# Loads and stores


def test_loads_convert_other(machine: Machine) -> None:
    def wider(tl: Any, f: Any) -> Any:
        pointers = f["px"] + f["lanes"][:, None]
        return tl.load(pointers, mask=f["lanes"][None, :] < 9, other=f["y0"])

    def load(other: Any, mask: Any) -> Expression:
        return lambda tl, f: tl.load(f["px"] + f["lanes"], mask=mask(f), other=other(f))

    values: dict[str, Any] = {
        "number": lambda f: 3.7,
        "int": lambda f: -2,
        **{name: operator.itemgetter(name) for name in ("f", "i", "y", "lanes")},
    }
    masks = {"box": lambda f: f["lanes"] < 5, "t": lambda f: f["t"], "True": lambda f: True,
             "numbers": lambda f: f["lanes"]}  # fmt: skip
    for dtype in LOADED:
        plan = [
            (f"{v} {m}", load(values[v], masks[m])) for v in values for m in masks if m != "numbers"
        ]
        plan.append(("without mask", lambda tl, f: tl.load(f["px"] + f["lanes"], other=0)))
        plan.append(("one", lambda tl, f: tl.load(f["px"] + 2)))
        plan.append(("one, block mask", lambda tl, f: tl.load(f["px"] + 2, mask=f["lanes"] < 5)))
        plan.append(
            ("one, block other", lambda tl, f: tl.load(f["px"], mask=f["t"], other=f["lanes"]))
        )
        plan.append(("float offset", lambda tl, f: tl.load(f["px"] + f["f"])))
        plan.append(("minus", lambda tl, f: tl.load(f["px"] + 31 - f["lanes"])))
        plan.append(
            (
                "wider mask",
                lambda tl, f: tl.load(
                    f["px"] + f["lanes"][:, None], mask=f["lanes"][None, :] < 9, other=1
                ),
            )
        )
        # A float that no integer has, converted to one, is the interpreter's own affair.
        y = numbers(dtypes.float32, 5)
        y = y if dtype.is_floating_point else np.nan_to_num(y, nan=0, posinf=9, neginf=0).clip(0)
        found = compared(machine, plan, numbers(dtype, 4), y)
        check([(f"{dtype} {n}", a, b) for n, a, b in found])


def test_stores_convert_values(machine: Machine) -> None:
    def store(value: str) -> Expression:
        def expression(tl: Any, f: Any) -> Any:
            tl.store(f["px"] + f["lanes"], f[value], mask=f["lanes"] < 20)
            return tl.load(f["px"] + f["lanes"])

        return expression

    for target, source in product(LOADED, LOADED):
        values = numbers(source, 6)
        if source.is_floating_point and not target.is_floating_point:
            values = np.where(np.isfinite(values), abs(values), values.dtype.type(1))
        # The interpreter stores the bytes of a truth value that is no number of one bit.
        plan = [(value, store(value)) for value in ("y", "y0", "lanes", "i", "t")]
        found = compared(machine, plan, numbers(target, 7), values)
        valued = not {source, target} & UNCOMPUTED
        check([(f"{target} {source} {n}", a, b) for n, a, b in found], valued=valued)


PRODUCTS = [
    dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.int8, dtypes.uint8,
    dtypes.int32, dtypes.float8_e5m2, dtypes.float8_e4m3fn,
]  # fmt: skip


ACCUMULATORS = [None, "float32", "float16", "int32", "float64", "bfloat16"]


@pytest.mark.parametrize("first", PRODUCTS, ids=repr)
def test_products(machine: Machine, first: Any) -> None:
    def dot(acc: str | None, **options: str) -> Expression:
        def expression(tl: Any, f: Any) -> Any:
            left, right = tl.reshape(f["x"], (4, 8)), tl.reshape(f["y"], (8, 4))
            given = {name: getattr(tl, value) for name, value in options.items()}
            if acc is None:
                return tl.dot(left, right, input_precision="ieee", **given)
            added = tl.full((4, 4), 3, getattr(tl, acc))
            return tl.dot(left, right, added, input_precision="ieee", **given)

        return expression

    plan = [
        (f"acc {acc} out {out}", dot(acc, **({"out_dtype": out} if out else {})))
        for acc in ACCUMULATORS
        for out in (None, "float32", "float16", "bfloat16")
    ]
    plan.append(("shape", lambda tl, f: tl.dot(tl.reshape(f["x"], (4, 8)), f["y"][None, :])))
    for second in PRODUCTS:
        # Small whole numbers, so that sums are exact in any order.
        x, y = (np.arange(32) % 5 - 2, np.arange(32) % 7)
        x, y = (abs(x) if first is dtypes.uint8 else x).astype(first.numpy), y.astype(second.numpy)
        found = compared(machine, plan, x, y)
        # Triton's front end lets an acc pass that has another type than the result; not so here.
        given = {f"acc {name}": getattr(ours, name) for name in ACCUMULATORS if name}
        alike = [
            (f"{first} {second} {name}", a, b)
            for name, a, b in found
            if b.error or given.get(name.partition(" out")[0], b.dtype) is b.dtype
        ]
        check(alike, valued=not {first, second} & UNCOMPUTED)
