"""Attention as one command forward and one backward, with no matrix of scores in memory."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernbench.attention import numbers
from kernbench.attention.backends import EFFICIENT, FLASH
from kernbench.attention.bands import Bands
from kernbench.errors import CallSite, call_site, site_fact
from kernbench.hw.attention import Direction
from kernbench.kernels.attention import duration_ps
from kernbench.memory import Array, DType, View, dtypes
from kernbench.operations.fused import broadcasts
from kernbench.operations.ranking import wide_type
from kernbench.process.act import act, act_at_once
from kernbench.process.process import Process, current_process
from kernbench.sim_engine.engine import Hold
from kernbench.tensors.errors import TensorError
from kernbench.tensors.host_time import is_recorded
from kernbench.tensors.new import new_tensor
from kernbench.tensors.running import same_device
from kernbench.tensors.tensor import Tensor


class Attention(NamedTuple):
    """What is computed, forward and backward.

    Attributes:
        query: `[b, heads, queries, width]`.
        key: `[b, groups, keys, width]`.
        value: `[b, groups, keys, value width]`.
        patterns: Which rows see which: bands of all batch elements, or of each.
        scale: Factor of the scores.
        bias: Added to the scores, `[b, heads, queries, keys]`, each or 1; of bools: what is seen.
        sink: `[heads]`: a score that each row has besides, with a value of 0.
        dropout: Which weights are dropped.
        backend: Whose kernel, as the machine file names it.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    patterns: tuple[Bands, ...]
    scale: float
    bias: Tensor | None = None
    sink: Tensor | None = None
    dropout: numbers.Dropout | None = None
    backend: str = FLASH


class Attended(NamedTuple):
    """What attention finds.

    Attributes:
        out: `[b, heads, queries, value width]`, laid out as the query is; 0 in rows that see no
            key.
        lse: Logarithms of the sums of the powers of a row's scores, `[b, heads, queries]`, float32
            or float64; -inf in rows without any.
        peak: The largest score of each head, `[heads]`, in the type of `lse`; None unless wanted.
    """

    out: Tensor
    lse: Tensor
    peak: Tensor | None


class Slopes(NamedTuple):
    """Gradients of the operands; None for those that were not given, or are of bools."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    sink: Tensor | None


def attend(
    given: Attention,
    *,
    dtype: DType | None = None,
    wants_peak: bool = False,
    row_major: bool = False,
) -> Attended:
    """Runs attention as one command; does not wait, and is not recorded by autograd.

    Args:
        given: What is computed.
        dtype: Type of `out`; None: that of the query. 16-bit floats are computed in float32.
        wants_peak: Whether the largest scores are wanted.
        row_major: Whether `out` lies row by row, however the query lies.

    Raises:
        TensorError: If shapes, types or devices do not fit.
    """
    name = f"_scaled_dot_product_{given.backend}_attention"
    _check(name, given)
    process = current_process()
    site = process.call_site()
    query = given.query
    b, heads, rows, _ = query.window.shape
    device = query.device
    wide = dtypes.float64 if query.dtype is dtypes.float64 else dtypes.float32
    shape, kind = (b, heads, rows, given.value.window.shape[3]), dtype or query.dtype
    if row_major:
        out = new_tensor(process, shape, kind, device, site)
    else:
        out = _like(query, shape, kind, given.backend)
    lse = new_tensor(process, (b, heads, rows), wide, device, site)
    peak = new_tensor(process, (heads,), wide, device, site) if wants_peak else None
    read = _reader(given)
    # Views alone: a command that waits does not keep memory that the program has dropped.
    targets = out.window, lse.window, None if peak is None else peak.window

    def effect() -> None:
        found = numbers.forward(read())
        targets[0].adopt(found.out)
        targets[1].adopt(found.lse)
        if targets[2] is not None:
            targets[2].adopt(found.peak.max(axis=(0, 2), initial=-np.inf))

    outputs = [each for each in (out, lse, peak) if each is not None]
    _run(process, name, "forward", given, (), outputs, effect, site)
    return Attended(out, lse, peak)


def attend_backward(
    given: Attention,
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    dtype: DType | None = None,
    wants_bias: bool = True,
) -> Slopes:
    """Runs the gradients of attention as one command, which computes the weights once more.

    Args:
        given: As in forward. Its keys may be some of those that `out` and `lse` are of: then these
            are the gradients that pass through them.
        grad: Gradient of `out`.
        out: What attention found.
        lse: What attention found.
        dtype: Type of the gradients of query, key and value; None: that of each.
        wants_bias: Whether the gradient of a bias is wanted.

    Raises:
        TensorError: If shapes, types or devices do not fit.
    """
    name = f"_scaled_dot_product_{given.backend}_attention_backward"
    _check(name, given)
    _check_found(name, given, grad, out, lse)
    process = current_process()
    site = process.call_site()
    main = [
        _like(each, each.window.shape, dtype or each.dtype, given.backend)
        for each in (given.query, given.key, given.value)
    ]
    bias, sink = [
        _like(each, each.window.shape, each.dtype, FLASH)
        if each is not None and wanted and each.dtype.is_floating_point
        else None
        for each, wanted in ((given.bias, wants_bias), (given.sink, True))
    ]
    read, patterns, wanted = _reader(given), given.patterns, bias is not None
    sources, sums = (grad.window, out.window), lse.window
    targets = [None if each is None else each.window for each in (*main, bias, sink)]

    def effect() -> None:
        above, below = (_rows(each, patterns, keys=False) for each in sources)
        found = numbers.backward(read(), above, below, sums.read(), wants_bias=wanted)
        for target, values in zip(targets, found, strict=True):
            if target is not None:
                target.adopt(values)

    outputs = [each for each in (*main, bias, sink) if each is not None]
    _run(process, name, "backward", given, (grad, out, lse), outputs, effect, site)
    query, key, value = main
    return Slopes(query, key, value, bias, sink)


def _check(name: str, given: Attention) -> None:
    """Refuses operands that do not fit each other."""
    q, k, v = (each.window.shape for each in given[:3])
    wrong = ""
    if not len(q) == len(k) == len(v) == 4:
        wrong = "expected four dimensions each"
    elif k[:3] != v[:3] or q[0] != k[0] or q[3] != k[3]:
        wrong = "batch, keys or widths differ"
    elif q[1] % k[1] if k[1] else q[1]:
        wrong = f"the {q[1]} heads of the query are no multiple of the {k[1]} of key and value"
    elif len({each.dtype for each in given[:3]}) > 1:
        wrong = f"types differ: {', '.join(str(each.dtype) for each in given[:3])}"
    elif not _is_number(given.query):
        wrong = f"no attention of {given.query.dtype}"
    elif len(given.patterns) not in {1, q[0]}:
        wrong = f"{len(given.patterns)} patterns for {q[0]} batch elements"
    elif given.bias is not None and not (
        len(given.bias.window.shape) == 4 and broadcasts(given.bias.window.shape, (*q[:3], k[2]))
    ):
        bias = list(given.bias.window.shape)
        wrong = f"a bias of shape {bias} does not broadcast to {[*q[:3], k[2]]}"
    elif given.bias is not None and not _is_number(given.bias, dtypes.bool_):
        wrong = f"a bias of {given.bias.dtype}, expected floats or bools"
    elif given.sink is not None and given.sink.window.shape != q[1:2]:
        wrong = f"a sink of shape {list(given.sink.window.shape)} for {q[1]} heads"
    elif given.sink is not None and not _is_number(given.sink):
        wrong = f"a sink of {given.sink.dtype}, expected floats"
    if wrong:
        facts = [
            f"query {list(q)}, key {list(k)}, value {list(v)}",
            "expected [b, heads, queries, width], [b, groups, keys, width] and "
            "[b, groups, keys, value width]",
        ]
        raise TensorError(f"{name}: {wrong}", [site_fact(call_site()), *facts])


def _is_number(each: Tensor, *others: DType) -> bool:
    """Returns whether a tensor is of floats that are computed with, or of some other type."""
    dtype = each.dtype
    return (dtype.is_floating_point and dtype.itemsize > 1) or dtype in others


def _check_found(name: str, given: Attention, grad: Tensor, out: Tensor, lse: Tensor) -> None:
    """Refuses what forward cannot have found of some operands."""
    rows = given.query.window.shape[:3]
    expected = *rows, given.value.window.shape[3]
    for what, each, shape in (("grad", grad, expected), ("out", out, expected), ("lse", lse, rows)):
        if each.window.shape != shape:
            raise TensorError(
                f"{name}: {what} of shape {list(each.window.shape)}, expected {list(shape)}",
                [site_fact(call_site())],
            )


def _like(model: Tensor, shape: tuple[int, ...], dtype: DType, backend: str) -> Tensor:
    """Returns a tensor without values whose dimensions lie in memory in the order of a model's.

    They lie row by row if the model's elements are used more than once. Of memory-efficient
    attention the heads lie behind the rows.
    """
    process, old = current_process(), model.window
    order, pairs = [3, 1, 2, 0], zip(old.strides, old.shape, strict=True)
    if backend != EFFICIENT:
        if any(stride == 0 and size > 1 for stride, size in pairs):
            return new_tensor(process, shape, dtype, model.device)
        order = sorted(range(len(shape)), key=lambda d: (old.strides[d], -d))
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d], step = step, step * max(shape[d], 1)
    return new_tensor(process, shape, dtype, model.device, strides=tuple(strides))


def _reader(given: Attention) -> Callable[[], numbers.Operands]:
    """Returns a function that reads the operands when the command runs."""
    main = [each.window for each in (given.query, given.key, given.value)]
    more = [None if each is None else each.window for each in (given.bias, given.sink)]
    patterns, scale, dropout = given.patterns, given.scale, given.dropout

    def read() -> numbers.Operands:
        query = _rows(main[0], patterns, keys=False)
        key, value = (_rows(each, patterns, keys=True) for each in main[1:])
        bias, sink = (None if each is None else _as(each.read(), query.dtype) for each in more)
        return numbers.Operands(query, key, value, patterns, scale, bias, sink, dropout)

    return read


def _as(values: Array, dtype: Any) -> Array:
    """Returns numbers in a type; bools stay what they are."""
    return values if values.dtype == np.bool_ else values.astype(dtype, copy=False)


def _rows(view: View, patterns: Sequence[Bands], *, keys: bool) -> Array:
    """Returns the elements; rows in bands must have been written, others need not.

    Raises:
        UninitialisedReadError: If a row in a band was never written.
    """
    if view.buffer.unwritten is not None:
        b, heads, _, width = view.shape
        for at, pattern in numbers.batches(patterns):
            start, stop, _ = at.indices(b)
            for band in pattern:
                first, count = (band.key, band.keys) if keys else (band.query, band.queries)
                shape = stop - start, heads, count, width
                offset = view.offset + start * view.strides[0] + first * view.strides[2]
                View(view.buffer, view.dtype, shape, view.strides, offset).read()
    return _as(view.array(), wide_type(view.dtype))


def _run(
    process: Process,
    name: str,
    direction: Direction,
    given: Attention,
    more: Sequence[Tensor],
    outputs: Sequence[Tensor],
    effect: Callable[[], None],
    site: CallSite | None,
) -> None:
    optional = [each for each in (given.bias, given.sink) if each is not None]
    inputs = [*given[:3], *optional, *more]
    where = same_device(name, inputs)
    name = f"aten::{name}"
    if where.index is None:
        act_at_once(process, name, effect, reads=inputs, writes=outputs, site=site)
        return
    device = process.engine.devices[where.index]
    nbytes = sum(each.window.nbytes for each in (*inputs, *outputs))
    operands = given.query.window, given.key.window, given.value.window
    lasting = duration_ps(
        device.library, given.backend, direction, operands, given.patterns, nbytes
    )
    work = Hold(process.engine, device.compute, lasting, effect)
    stream = process.current_stream(where.index)
    act(
        process,
        name,
        "compute",
        stream,
        work,
        reads=inputs,
        writes=outputs,
        site=site,
        issue="recorded" if is_recorded(process) else "compute",
    )
