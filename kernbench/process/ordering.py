"""Which calls order what: the one table of waits between host, streams and copies.

The rows say what CUDA and PyTorch promise, and no more: a driver may wait longer, and a program
must not rely on it. `docs/pytorch.md` shows the table, and each row has a test.
"""

from typing import Final, Literal, NamedTuple

Waits = Literal["nothing", "the current stream", "the stream", "the event", "all streams"]
"""For what the host waits in a call."""

_RUNTIME: Final = "CUDA Runtime API, API synchronization behavior"
_SEMANTICS: Final = "PyTorch, CUDA semantics"


class Row(NamedTuple):
    """What a call orders.

    Attributes:
        call: The call.
        host: What of the device is done when the call returns to the host.
        streams: Which stream comes after which from then on, beside what the host has waited for.
        buffer: What the host may do with its memory after the call; empty if it has no part in it.
        source: The document that says so.
    """

    call: str
    host: Waits
    streams: str = ""
    buffer: str = ""
    source: str = _SEMANTICS


class Copy(NamedTuple):
    """What a copy between host and device does.

    Attributes:
        waits: Whether the host waits for the current stream, and so for the copy.
        lends: Whether the copy uses memory of the host after the call.
    """

    waits: bool
    lends: bool


def copy_rule(*, to_device: bool, pinned: bool, non_blocking: bool) -> Copy:
    """Returns what a copy between host and device does.

    Args:
        to_device: Which way it goes.
        pinned: Whether the memory of the host is pinned.
        non_blocking: What the program asks for.
    """
    if not non_blocking:
        return Copy(waits=True, lends=False)
    if pinned:
        return Copy(waits=False, lends=True)
    return Copy(waits=not to_device, lends=False)


_FREE: Final = "free"
_TO_READ: Final = "not to be written before a wait"
_TO_WRITE: Final = "not to be touched before a wait"
_BLOCKING: Final = "PyTorch, Tensor.copy_: cudaMemcpyAsync, then cudaStreamSynchronize"

ROWS: Final = (
    Row('pageable.to("cuda")', "the current stream", "", _FREE, _BLOCKING),
    Row('pinned.to("cuda")', "the current stream", "", _FREE, _BLOCKING),
    Row('pageable.to("cuda", non_blocking=True)', "nothing", "", _FREE, _RUNTIME),
    Row('pinned.to("cuda", non_blocking=True)', "nothing", "", _TO_READ, _RUNTIME),
    Row("pageable.copy_(x)", "the current stream", "", _FREE, _BLOCKING),
    Row("pinned.copy_(x)", "the current stream", "", _FREE, _BLOCKING),
    Row("pageable.copy_(x, non_blocking=True)", "the current stream", "", _FREE, _RUNTIME),
    Row("pinned.copy_(x, non_blocking=True)", "nothing", "", _TO_WRITE, _RUNTIME),
    Row(
        'x.to("cpu", non_blocking=True)',
        "nothing",
        "",
        _TO_WRITE,
        "PyTorch, Tensor.to: the result is pinned",
    ),
    Row("x.cpu(), x.tolist(), print(x)", "the current stream", "", _FREE, _BLOCKING),
    Row("x.item(), bool(x), torch.equal(x, y)", "the current stream"),
    Row("torch.tensor([1.0], device='cuda')", "the current stream", "", _FREE, _BLOCKING),
    Row("torch.zeros(4, device='cuda'), x.fill_(1)", "nothing"),
    Row(
        "torch.nonzero(x), x[x > 0], torch.masked_select(x, x > 0), torch.unique(x)",
        "the current stream",
        source="PyTorch, torch.nonzero: the host asks for the size",
    ),
    Row("x.copy_(y), y + 1", "nothing", source=_RUNTIME),
    Row(
        "memory of a tensor that is gone, to one made on the same stream",
        "nothing",
        "the stream on which the first was made, and no other; record_stream() adds one",
        source="PyTorch, Tensor.record_stream",
    ),
    Row("torch.empty(4, device='cuda'), torch.cuda.empty_cache()", "nothing"),
    Row("torch.cuda.synchronize()", "all streams"),
    Row("stream.synchronize()", "the stream"),
    Row("stream.query() is True", "the stream"),
    Row("event.synchronize()", "the event"),
    Row("event.query() is True", "the event"),
    Row("event.record(stream)", "nothing", "the event comes after what the stream has now"),
    Row("stream.wait_event(event), event.wait(stream)", "nothing", "the stream after the event"),
    Row("stream.wait_stream(other)", "nothing", "the stream after what the other has now"),
    Row("the default stream and others", "nothing", "none: PyTorch's streams do not block"),
    Row("work.wait() of NCCL, a call without async_op", "nothing", "the current stream after it"),
)
"""What each call orders, by the documents that are named."""
