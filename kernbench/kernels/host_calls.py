"""What a host takes for a call of PyTorch: to issue a command, for a view, for autograd."""

from dataclasses import fields
from typing import Final, Literal, NamedTuple, get_args

from kernbench.kernels.names import kernel_name
from kernbench.topology.spec import HostSpec, LibraryCallsSpec

Issue = Literal[
    "compute",
    "recorded",
    "kernel",
    "copy",
    "collective",
    "event",
    "hosted",
    "message",
    "batch",
    "batched",
    "joined",
    "graph",
    "replayed",
]
"""What the host calls to issue a command, which decides how long that takes.

`recorded` is an operation that autograd may record, or of a backward pass; `hosted` a collective or
message between hosts; `batch` the first message of a batch, `batched` a later one, `joined` what
waits for all of them; `graph` the launch of a CUDA graph, `replayed` a command of it, or a later
step of one call.
"""

_ALONE: Final = 100

_ATTENTION: Final = tuple(
    f"_scaled_dot_product_{backend}_attention" for backend in ("cudnn", "flash", "efficient")
)
_OPERATORS: Final[dict[str, tuple[str, ...]]] = {
    "product": ("mm", "bmm", "_grouped_mm", "_scaled_mm"),
    "sum_product": ("addmm", "baddbmm"),
    "convolution": ("convolution",),
    "convolution_backward": ("convolution_backward",),
    "attention": _ATTENTION,
    "attention_backward": tuple(f"{name}_backward" for name in _ATTENTION),
    "norm": (
        "native_batch_norm",
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "native_layer_norm",
    ),
    "sorting": ("sort", "embedding_dense_backward", "index_put", "index_put_", "nonzero"),
    "bag_backward": ("_embedding_bag_backward", "_embedding_bag_dense_backward"),
}
"""Operators of PyTorch by the fields of `LibraryCallsSpec`."""


class HostCalls(NamedTuple):
    """Host times of one rank, in picoseconds.

    Attributes:
        issues: What issuing a command takes, with the call that does so.
        among: What an operation takes more outside of a short loop.
        loop: How many operations such a loop has at most.
        library: What operations take more that prepare a call of a library, by kernel.
        tensor: What an operation on lists takes for each tensor of its first list.
        view: What an operation without a kernel takes: without autograd, and with.
        backward: What a backward pass takes beside its operations.
        step: What a step of an optimiser takes beside its operations.
        zero_grad: What `zero_grad` takes beside what it issues.
        zeroed: What it takes for each gradient.
        hook: Packing or unpacking a saved tensor by a hook in Python.
        shard: Taking one parameter of FSDP2 out of what was gathered, or into what is reduced.
        dtensor: Dispatching one operation on a `DTensor`, beside the operations that it becomes.
    """

    issues: dict[str, int]
    among: int
    loop: int
    library: dict[str, int]
    tensor: int
    view: tuple[int, int]
    backward: int
    step: int
    zero_grad: int
    zeroed: int
    hook: int
    shard: int
    dtensor: int


NO_TIME: Final = HostCalls(dict.fromkeys(get_args(Issue), 0), 0, 1, {}, 0, (0, 0), *(0,) * 7)
"""Of an engine that takes no simulated time."""


def host_calls(host: HostSpec, *, beside: bool) -> HostCalls:
    """Returns what the calls of a rank take.

    Args:
        host: What the machine's file says of the host.
        beside: Whether other ranks of the program run on the same host.
    """
    eager, own = host.eager, host.dispatch_of
    percent = eager.beside_percent if beside else _ALONE

    def scaled(time: int) -> int:
        return time * percent // _ALONE

    issues: dict[str, int] = dict.fromkeys(get_args(Issue), int(host.dispatch))
    for name in get_args(Issue):
        time = getattr(own, name, None)
        if time is not None:
            issues[name] = time
    issues["replayed"] = 0
    issues["compute"] = scaled(issues["compute"])
    issues["recorded"] = issues["compute"] + scaled(eager.autograd)
    if own.batch is not None:
        issues["batched"] = issues["joined"] = 0
    else:
        issues["batch"] = issues["batched"] = issues["message"]
        issues["joined"] = issues["event"]
    library = {
        kernel_name(operator): scaled(getattr(eager.library, field.name))
        for field in fields(LibraryCallsSpec)
        for operator in _OPERATORS[field.name]
    }
    return HostCalls(
        issues,
        scaled(eager.among),
        eager.loop,
        library,
        scaled(eager.tensor),
        (scaled(eager.view), scaled(eager.view + eager.autograd)),
        scaled(eager.backward),
        scaled(eager.step),
        scaled(eager.zero_grad),
        scaled(eager.zeroed),
        scaled(eager.hook),
        scaled(eager.shard),
        scaled(eager.dtensor),
    )
