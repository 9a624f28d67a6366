"""What a line of a table says: the operation, its types and sizes, and how it was timed.

The only place that reads the columns of single kernels. Laws (`cells`) price what it returns, and
the programs of the room `validation` call it.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final, NamedTuple, TypeAlias, TypeVar

from kernbench.config.near import did_you_mean
from kernbench.errors import UnsupportedError
from kernbench.memory import DType, dtypes

Line: TypeAlias = Mapping[str, str]
"""The texts of a line, by column."""

T = TypeVar("T")

DTYPES: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "fp32": "float32",
    "float32": "float32",
    "tf32": "float32",
    "fp8": "float8_e4m3fn",
}
"""Names of types in tables, as `torch` has them."""

BACKENDS: Final[Mapping[str, str]] = {
    "flash": "flash",
    "flash2": "flash",
    "cudnn": "cudnn",
    "efficient": "efficient",
}
"""Backends of attention in tables, as machine files have them."""

REPLAYS: Final = 20
"""Calls of a CUDA graph in the measurements, between two events."""

GRAPHS_UP_TO: Final = 16 << 20
"""Bytes up to which `memory.csv` was replayed from graphs."""

ROW: Final = 4096
"""Elements of a row of `add_bcast` and `transpose_copy`."""


def known(options: Mapping[str, T], word: str, column: str = "op") -> T:
    """Returns what a word of a line stands for.

    Args:
        options: All there are, by word.
        column: The word's column, for the error.

    Raises:
        UnsupportedError: If the word stands for nothing.
    """
    if word not in options:
        raise UnsupportedError(f"{column} {word!r} is not known", hint=did_you_mean(word, options))
    return options[word]


def dtype_of(line: Line) -> DType:
    """Returns the type of a line's operands; bfloat16 if the table has no column for it.

    Raises:
        UnsupportedError: If there is no such type.
    """
    found: DType = getattr(dtypes, known(DTYPES, line.get("dtype", "bf16"), "dtype"))
    return found


class Elements(NamedTuple):
    """An operation on each element, of `elementwise` and `memory`.

    Attributes:
        op: The operation.
        dtype: Type of its operands.
        number: Elements of one operand.
    """

    op: str
    dtype: DType
    number: int


def elements(line: Line) -> Elements:
    """Returns what a line of `elementwise` or `memory` says; the latter is of bfloat16.

    Raises:
        UnsupportedError: If there is no such type.
    """
    dtype = dtype_of(line)
    return Elements(line["op"], dtype, int(line["bytes"]) // dtype.itemsize)


def replayed(line: Line) -> bool:
    """Returns whether a graph repeated the call of a line of `memory`."""
    return int(line["bytes"]) <= GRAPHS_UP_TO


class OverRows(NamedTuple):
    """An operation over the last dimension, of `rowops`, `rowops2` and `rowops3`.

    Attributes:
        op: The operation.
        dtype: Type of its operands; bfloat16 but for `rowops3`.
        backward: Whether it is the gradient of all its inputs.
        rows: Rows of the operand.
        columns: Extent of the last dimension.
    """

    op: str
    dtype: DType
    backward: bool
    rows: int
    columns: int


def over_rows(line: Line) -> OverRows:
    """Returns what a line of `rowops`, `rowops2` or `rowops3` says.

    Raises:
        UnsupportedError: If there is no such type.
    """
    name = line["op"].replace("layernorm", "layer_norm")  # rowops has it so
    op = name.removesuffix("_bwd")
    return OverRows(op, dtype_of(line), op != name, int(line["rows"]), int(line["cols"]))


class Product(NamedTuple):
    """A product of matrices, of `gemm`, `gemm2` and `gemm_sustained`: a[m, k] and b[n, k].T.

    Attributes:
        dtype: Type of the operands.
        tf32: Whether float32 may be multiplied as TF32.
        scaled: Whether operands of 8 bits have scales, and the result is bfloat16.
    """

    dtype: DType
    tf32: bool
    scaled: bool
    m: int
    n: int
    k: int


def product(line: Line) -> Product:
    """Returns what a line of a table of products says.

    Raises:
        UnsupportedError: If there is no such type.
    """
    dtype, word = dtype_of(line), line["dtype"]
    return Product(dtype, word == "tf32", word == "fp8", *(int(line[name]) for name in "mnk"))


class Attention(NamedTuple):
    """Attention, of `attention` and `attention2`; operands are bfloat16.

    Attributes:
        backend: Whose kernel, as machine files name it.
        groups: Heads of keys and values.
        width: Elements of a head.
        causal: Whether a query sees no later key.
    """

    backend: str
    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    causal: bool


def attention(line: Line) -> Attention:
    """Returns what a line of a table of attention says; without `sq`, a query for each key.

    Raises:
        UnsupportedError: If there is no such backend.
    """
    backend = known(BACKENDS, line["backend"], "backend")
    batch, heads, groups, keys, width = (int(line[name]) for name in ("b", "h", "hk", "s", "d"))
    queries, causal = int(line.get("sq", line["s"])), line["causal"] in {"True", "1"}
    return Attention(backend, batch, heads, groups, queries, keys, width, causal)


class LookUp(NamedTuple):
    """A look-up in a table of embeddings, or the gradient of the table.

    Attributes:
        vocabulary: Rows of the table.
        hidden: Elements of a row.
        tokens: How many rows are looked up.
    """

    backward: bool
    dtype: DType
    vocabulary: int
    hidden: int
    tokens: int


def look_up(line: Line) -> LookUp:
    """Returns what a line of `embedding` says.

    Raises:
        UnsupportedError: If there is no such type or operation.
    """
    backward = known({"embedding": False, "embedding_bwd": True}, line["op"])
    sizes = (int(line[name]) for name in ("vocab", "hidden", "tokens"))
    return LookUp(backward, dtype_of(line), *sizes)


class Step(NamedTuple):
    """A step of an optimiser, of `optim`.

    Attributes:
        op: Which step.
        dtype: Type of parameters and states.
        shapes: Shapes of the parameters.
    """

    op: str
    dtype: DType
    shapes: Sequence[tuple[int, ...]]


_LAYERS, _HIDDEN, _FFN, _KEYS, _VOCABULARY = 16, 2048, 8192, 512, 128256
_LAYER: Final = (
    *[(_HIDDEN, _HIDDEN)] * 2,
    *[(_KEYS, _HIDDEN)] * 2,
    *[(_FFN, _HIDDEN)] * 3,
    *[(_HIDDEN,)] * 2,
)
_SHAPES: Final = ((_VOCABULARY, _HIDDEN), (_HIDDEN,), *_LAYER * _LAYERS)
"""Parameters of a Llama of 1.24 B elements, which the lines of `optim` are of."""


def step(line: Line) -> Step:
    """Returns what a line of `optim` says.

    Raises:
        UnsupportedError: If there is no such type, or the parameters are not those of the one model
            whose shapes are known.
    """
    count, told = sum(map(prod, _SHAPES)), (int(line["tensors"]), int(line["elements"]))
    if told != (len(_SHAPES), count):
        raise UnsupportedError(
            f"tensors {told[0]} with {told[1]} elements: their shapes are not known",
            hint=f"the only known model has {len(_SHAPES)} tensors with {count} elements",
        )
    return Step(line["op"], dtype_of(line), _SHAPES)
