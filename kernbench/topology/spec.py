"""The machine on paper: frozen, already checked. Units are in the types."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeVar

from kernbench.config.schema import Changes, Names, Range
from kernbench.units import Bandwidth, Bytes, FlopRate, Frequency, Ps

Latency = Annotated[Ps, Range(0, 10**12)]
Count = Annotated[int, Range(1, 1 << 20)]
Percent = Annotated[int, Range(1, 100)]

Part = TypeVar("Part")

MAX_SIPS: Final = 1 << 17

HBM_CAPACITY: Final = ("cube", "hbm", "capacity")
_NOTHING: Final[Changes[Any]] = Changes({})

_CHUNK: Final = Bytes(64 << 10)


FOLLOWS: Final[Any] = None
"""Default of a value that follows from others of the machine; `defaults.completed` puts it in."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One direction of a link.

    Attributes:
        bandwidth: Payload bytes a second.
        latency: Time of flight of the first byte.
    """

    bandwidth: Bandwidth
    latency: Latency


_GLOO: Final = LinkSpec(Bandwidth(3 * 10**9), Ps(40_000_000))
"""Messages between hosts of machines that do not say otherwise: 40 us and 3 GB/s.

Two processes of one small host reach about this through Gloo's TCP (PyTorch 2.13, 2 cores): 4 B in
40 us, 64 MiB in 22 ms. No machine file is calibrated for it.
"""


@dataclass(frozen=True, slots=True)
class DispatchSpec:
    """Host times of issuing commands of some kinds; what is absent takes `HostSpec.dispatch`.

    Attributes:
        compute: An operation on tensors.
        kernel: A `tl` kernel.
        copy: A copy between memories.
        collective: A collective between devices.
        message: A send or a receive between devices that is not in a batch.
        batch: A batch of messages between devices, however many; if absent, each costs as a message
            and the end of the batch as an event.
        event: Recording an event.
        graph: Launching a CUDA graph, however many commands it has.
    """

    compute: Latency | None = None
    kernel: Latency | None = None
    copy: Latency | None = None
    collective: Latency | None = None
    message: Latency | None = None
    batch: Latency | None = None
    event: Latency | None = None
    graph: Latency | None = None


_ALL_ALIKE: Final = DispatchSpec()


@dataclass(frozen=True, slots=True)
class LibraryCallsSpec:
    """What operations take on the host beside others, which prepare a call of a library.

    Attributes:
        product: A product of matrices.
        sum_product: A product of matrices to which a bias is added, such as `Linear` with one.
        convolution: A convolution.
        convolution_backward: Its gradients.
        attention: Fused attention.
        attention_backward: Its gradients.
        norm: A batch, group or layer norm.
        sorting: What sorts or selects: `sort`, `nonzero`, gradients of look-ups, writes by lists of
            indices.
        bag_backward: Gradients of a bag of embeddings, of about 30 kernels.
    """

    product: Latency = Ps(0)
    sum_product: Latency = Ps(0)
    convolution: Latency = Ps(0)
    convolution_backward: Latency = Ps(0)
    attention: Latency = Ps(0)
    attention_backward: Latency = Ps(0)
    norm: Latency = Ps(0)
    sorting: Latency = Ps(0)
    bag_backward: Latency = Ps(0)


_NO_CALLS: Final = LibraryCallsSpec()


@dataclass(frozen=True, slots=True)
class EagerSpec:
    """What PyTorch itself takes on the host beside issuing commands, under both torches.

    Attributes:
        among: What an operation takes more behind another one than behind itself: in a loop of one
            operation, the processor has its code at hand.
        loop: Operations of the longest loop of which the processor has the code at hand: behind its
            second pass they take no `among`. Default: of one operation.
        library: What operations take more that prepare a call of a library.
        tensor: What an operation on lists takes for each tensor of its first list.
        view: An operation that runs no kernel, such as a view.
        autograd: What each operation takes more that autograd records, or that runs in a backward
            pass.
        backward: What a backward pass takes beside its operations: calling it, and waking its
            thread, which has no code at hand.
        step: What a step of an optimiser takes beside its operations.
        zero_grad: What `zero_grad` takes beside what it issues.
        zeroed: What it takes for each gradient.
        hook: Packing or unpacking a saved tensor by a hook in Python, as checkpointing does.
        shard: Taking one parameter of FSDP2 out of what was gathered, or into what is reduced.
        dtensor: Dispatching one operation on a `DTensor`, beside the operations that it becomes.
        beside_percent: All these and the issuing of operations, for a rank beside others of one
            program, in percent of what a rank alone takes.
        workspace: Memory of the device that cuBLAS takes at the first matrix product of a stream,
            once for the forward and once for the backward pass, whose threads have handles of their
            own.
    """

    among: Latency = Ps(0)
    loop: Annotated[int, Range(1, 64)] = 1
    library: LibraryCallsSpec = _NO_CALLS
    tensor: Latency = Ps(0)
    view: Latency = Ps(0)
    autograd: Latency = Ps(0)
    backward: Latency = Ps(0)
    step: Latency = Ps(0)
    zero_grad: Latency = Ps(0)
    zeroed: Latency = Ps(0)
    hook: Latency = Ps(0)
    shard: Latency = Ps(0)
    dtensor: Latency = Ps(0)
    beside_percent: Count = 100
    workspace: Bytes | None = None


_NO_EAGER: Final = EagerSpec()

_PCIE: Final = LinkSpec(Bandwidth(55 * 10**9), Ps(7_000_000))
"""PCIe 5.0 x16, as measured on the host of `h200x8`."""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The processor that issues commands; one per rank.

    Attributes:
        dispatch: Host time of issuing one command, or of one look at whether one is done. Default:
            that of PyTorch 2.11 without graphs, as measured on the host of `h200x8`.
        launch_queue: Commands that may be outstanding on a device before the host blocks. Default:
            CUDA's.
        pcie: Path between host and device, each direction. Default: PCIe 5.0 x16, as measured on
            the host of `h200x8`.
        gloo: Path of a message between the hosts of two ranks, through Gloo. Default: about what
            two processes of one small host reach.
        dispatch_of: Host times of issuing commands of some kinds, in place of `dispatch`. Default:
            all cost the same.
        eager: What PyTorch itself takes beside. Default: nothing.
        loop: What enqueueing one small kernel takes in a loop of nothing else. It is not simulated:
            `kernbench calibrate` compares two hosts by it. Default: unknown.
    """

    dispatch: Latency = Ps(9_300_000)
    launch_queue: Count = 1024
    pcie: LinkSpec = _PCIE
    gloo: LinkSpec = _GLOO
    dispatch_of: DispatchSpec = _ALL_ALIKE
    eager: EagerSpec = _NO_EAGER
    loop: Latency | None = None


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """A memory with a port that serves one request at a time.

    Attributes:
        capacity: Size in bytes.
        bandwidth: Bytes a second through the port.
        latency: Time from the request to the first byte.
    """

    capacity: Bytes
    bandwidth: Bandwidth
    latency: Latency


@dataclass(frozen=True, slots=True)
class HbmSpec(MemorySpec):
    """The memory that holds tensors: an HBM stack.

    Attributes:
        capacity: Size in bytes.
        bandwidth: Bytes a second through the port: what a copy reaches, reads and writes together.
        latency: Time from the request to the first byte. Default: that of `h200x8`, an estimate.
    """

    latency: Latency = Ps(200_000)


@dataclass(frozen=True, slots=True)
class SramSpec(MemorySpec):
    """The memory that all PEs of a cube share: the L2 cache of a GPU.

    Attributes:
        capacity: Size in bytes. Default: between the 40 MB of an A100 and the 60 MiB of an H200.
        bandwidth: Bytes a second through the port. Default: twice that of the cube's HBM, so that
            it never holds up what the HBM allows.
        latency: Time from the request to the first byte. Default: that of `h200x8`, an estimate.
    """

    capacity: Bytes = Bytes(48 << 20)
    bandwidth: Bandwidth = FOLLOWS
    latency: Latency = Ps(100_000)


@dataclass(frozen=True, slots=True)
class TcmSpec(MemorySpec):
    """The memory of one PE: the shared memory of an SM.

    Attributes:
        capacity: Size in bytes. Default: shared memory and L1 of an SM of an H100.
        bandwidth: Bytes a second through the port. Default: that of the cube's HBM, since the
            program of a collective has its slots here and stands for all PEs that share the work.
        latency: Time from the request to the first byte. Default: that of `h200x8`, an estimate.
    """

    capacity: Bytes = Bytes(256 << 10)
    bandwidth: Bandwidth = FOLLOWS
    latency: Latency = Ps(15_000)


@dataclass(frozen=True, slots=True)
class TilesSpec:
    """Output tiles among which the library chooses for products of some types.

    For each step of the sum a PE works on a tile of `a x b` as long as on `a*b + edge*(a + b)`
    multiply-adds: the products, and the operands that have to be there for them.

    Attributes:
        rate: FLOP a second of one PE, without the operands, by dtype name.
        edge: Multiply-adds for which one operand of a step holds the PE up.
        tiles: Extents of the tiles; each may lie either way.
    """

    rate: dict[str, FlopRate]
    edge: Annotated[int, Range(0, 1 << 16)]
    tiles: tuple[tuple[Count, Count], ...]


@dataclass(frozen=True, slots=True)
class LibrarySpec:
    """How the library multiplies matrices: it takes what is fastest (ADR 0028).

    Attributes:
        start: Time of a product beside the launch, its work and its traffic: the first operands,
            the last results.
        write_back: Bytes of earlier kernels' results in the SRAM. What a product or attention reads
            displaces them, so that as many bytes of its traffic as that count twice.
        split_k: Most parts into which the sum of a product may be split; PEs work on the parts side
            by side, and a second kernel adds them.
        kernels: Tiles by type. Products of other types have the one tile of `GemmSpec`.
    """

    start: Latency
    write_back: Annotated[Bytes, Range(0, 10**15)]
    split_k: Annotated[int, Range(1, 64)]
    kernels: tuple[TilesSpec, ...]


@dataclass(frozen=True, slots=True)
class GemmSpec:
    """The matrix engine of a PE.

    Attributes:
        rate: FLOP a second of one PE by dtype name (`fp64`, `fp32`, `tf32`, `fp16`, `bf16`, `fp8`,
            `int8`, `int32`), at least one. `tf32` is the rate of `tl.dot` of float32, and of
            products for which a program asks for it; without it, that of `fp32` is taken, if there
            is one. Types that are left out follow from `bf16` as on GPUs: `fp16` has the same rate,
            `fp8` and `int8` twice that, `tf32` half of it, `fp32` a 16th, `fp64` and `int32` a
            32nd; without `bf16`, from the first there is of `fp16`, `fp8`, `int8`, `tf32`, `fp32`,
            `fp64` and `int32`, in the same proportions.
        tile: Rows and columns of the output tile that a library kernel gives to one PE. Default: a
            common tile of cuBLAS, small enough to keep many PEs busy.
        library: What the library's products choose among. Default: they all have that one tile.
    """

    rate: dict[str, FlopRate]
    tile: tuple[Count, Count] = (128, 128)
    library: LibrarySpec | None = None


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How a kernel of the library computes attention: in tiles of scores.

    A program takes one tile of queries (backward: of keys) of one head through all tiles of keys
    (of queries) that it sees; a PE has one program at a time.

    Attributes:
        backend: Whose kernel: `flash`, `cudnn` or `efficient`.
        direction: Whether it is of `forward` or of `backward`, which computes the scores once more.
        start: Time beside launch, programs and traffic: the first operands, the last results.
        program: Time of a program beside its tiles: its own operands and results.
        tile: Queries and keys of a tile.
        share: Percent of the rate of products of `bf16` that it reaches: of `gemm.library`, or if
            that has no such products, of `gemm.rate`. Other types as in `gemm.rate`.
        scores: Scores that one PE works on a second beside products, in percent of `math`.
        adding: What it takes more if PEs divide the keys of a few queries, to add their sums.
            Default: nothing.
        fp32: Percent of the pace of `bf16` at which it goes through tiles of `fp32`. Default:
            products as in `gemm.rate`, all else as for `bf16`.
    """

    backend: Literal["flash", "cudnn", "efficient"]
    direction: Literal["forward", "backward"]
    start: Latency
    program: Latency
    tile: tuple[Count, Count]
    share: Percent
    scores: Percent
    adding: Latency = Ps(0)
    fp32: Percent | None = None


@dataclass(frozen=True, slots=True)
class ProgramsSpec:
    """How programs of one launch share a PE, such as those of a kernel of Triton.

    The defaults are the limits of an SM of an H100, and times of programs that reach what the
    machine can do.

    Attributes:
        warps: Most warps at once.
        programs: Most programs at once.
        registers: Registers that they share, of 4 bytes.
        shared: Shared memory that they share.
        reserved: Shared memory that each takes beside what it asks for.
        issue: Percent of the rate of `math` at which warps issue instructions; one of a warp counts
            as 32 operations.
        latency: From a load to its first element, as far as no other work hides it.
        step: From an instruction of a warp to its next one.
        traffic: Percent of the SRAM's bandwidth at which programs load and store, counted as often
            as they do. More than 100 where that bandwidth was measured with kernels that store as
            much as they load.
        atomic: From an atomic operation to the next one at its address.
        sector: For which a slice of the last cache works on a sector of 32 bytes, of all atomic
            operations of a request that have addresses of their own in it.
        slices: Of that cache; 0: atomic operations never wait for each other.
    """

    warps: Count = 64
    programs: Count = 32
    registers: Count = 1 << 16
    shared: Bytes = Bytes(228 << 10)
    reserved: Annotated[Bytes, Range(0, 1 << 20)] = Bytes(1 << 10)
    issue: Percent = 100
    latency: Latency = Ps(0)
    step: Latency = Ps(0)
    traffic: Count = 100
    atomic: Latency = Ps(0)
    sector: Latency = Ps(0)
    slices: Annotated[int, Range(0, 1 << 16)] = 0


_PROGRAMS: Final = ProgramsSpec()

KERNELS: Final[dict[str, str | None]] = {
    "pointwise": None,
    "copy": "pointwise",
    "gelu": "pointwise",
    "gelu_backward": "gelu",
    "silu": "pointwise",
    "silu_backward": "silu",
    "dropout": "pointwise",
    "fill": None,
    "normal": "fill",
    "uniform": "fill",
    "bernoulli": "fill",
    "indexed": None,
    "broadcast": "indexed",
    "broadcast_planes": "broadcast",
    "roll": "indexed",
    "reflected": "pointwise",
    "prelu": "pointwise",
    "scattered": "indexed",
    "gather": "pointwise",
    "accumulate": "gather",
    "embedding": "pointwise",
    "embedding_backward": "pointwise",
    "sort": "pointwise",
    "topk": "pointwise",
    "recurrent": None,
    "recurrent_backward": "recurrent",
    "recurrent_layer": None,
    "recurrent_layer_backward": "recurrent_layer",
    "recurrent_step": None,
    "recurrent_step_backward": "recurrent_step",
    "recurrent_held": None,
    "recurrent_held_backward": "recurrent_held",
    "row_sum": None,
    "column_sum": None,
    "split_sum": "row_sum",
    "large_sum": None,
    "softmax": None,
    "softmax_warps": "softmax",
    "softmax_registers": "softmax",
    "softmax_backward": "softmax",
    "log_softmax": "softmax",
    "log_softmax_warps": "log_softmax",
    "log_softmax_registers": "log_softmax",
    "log_softmax_backward": "softmax",
    "nll_loss": None,
    "nll_loss_backward": None,
    "nll_loss2d": None,
    "nll_loss2d_backward": "nll_loss2d",
    "layer_norm": None,
    "layer_norm_backward": "layer_norm",
    "rms_norm": "layer_norm",
    "rms_norm_backward": "layer_norm_backward",
    "layer_norm_weights": None,
    "batch_norm": None,
    "batch_norm_backward": "batch_norm",
    "batch_norm_last": "batch_norm",
    "batch_norm_last_backward": "batch_norm_last",
    "batch_norm_stats": "batch_norm",
    "batch_norm_apply": None,
    "batch_norm_own_backward": "batch_norm_backward",
    "batch_norm_own_last": "batch_norm_last",
    "batch_norm_own_last_backward": "batch_norm_own_last",
    "batch_norm_elements": "batch_norm",
    "group_norm": "layer_norm",
    "group_norm_backward": "group_norm",
    "group_norm_moments": None,
    "group_norm_moments_far": "group_norm_moments",
    "group_norm_gradients": "group_norm_moments",
    "group_norm_gradients_far": "group_norm_gradients",
    "group_norm_weights": None,
    "max_pool": None,
    "max_pool_backward": "max_pool",
    "max_pool_last": "max_pool",
    "max_pool_last_backward": "max_pool_backward",
    "avg_pool": "max_pool",
    "avg_pool_backward": "max_pool_backward",
    "avg_pool_last": "avg_pool",
    "avg_pool_last_backward": "avg_pool_backward",
    "adaptive_pool": "avg_pool",
    "adaptive_pool_backward": "avg_pool_backward",
    "nearest": None,
    "nearest_backward": "nearest",
    "nearest_last": "nearest",
    "nearest_last_backward": "nearest_last",
    "bilinear": None,
    "bilinear_backward": "bilinear",
    "bilinear_backward_narrow": "bilinear_backward",
    "bilinear_last": "bilinear",
    "bilinear_last_backward": "bilinear_last",
    "embedding_bag": "embedding",
    "embedding_bag_backward": "embedding_backward",
    "product_by_4": None,
    "product_by_2": "product_by_4",
    "batched": None,
    "batched_odd": "batched",
    "batched_fp32": "batched",
    "convolution": None,
    "convolution_data": "convolution",
    "convolution_strided_data": "convolution_data",
    "convolution_weight": "convolution",
    "convolution_weight_tf32": "convolution_weight",
    "convolution_point": "convolution",
    "convolution_point_tf32": "convolution_point",
    "convolution_point_odd": "convolution_point",
    "convolution_volume": "convolution",
    "convolution_volume_data": "convolution_volume",
    "convolution_volume_weight": "convolution_weight",
    "convolution_volume_weight_tf32": "convolution_weight_tf32",
    "convolution_undivided": None,
    "convolution_few": "convolution",
    "convolution_few_tf32": "convolution_few",
    "convolution_grouped": "convolution",
    "convolution_grouped_weight": "convolution_grouped",
    "convolution_direct": None,
    "convolution_traffic": None,
    "convolution_layout": None,
    "convolution_weight_layout": "convolution_layout",
    "convolution_padding": "convolution_layout",
    "depthwise": None,
    "depthwise_data": "depthwise",
    "depthwise_weight": "depthwise",
    "depthwise_last": "depthwise",
    "depthwise_last_data": "depthwise_last",
    "depthwise_last_float32": "depthwise_last",
    "depthwise_last_data_float32": "depthwise_last_data",
    "depthwise_last_weight_float32": "depthwise_last_weight",
    "depthwise_last_weight": "depthwise_last",
    "arg_extreme": None,
    "scan": None,
    "cat": "pointwise",
    "split": "pointwise",
    "grouped": None,
    "grouped_traffic": None,
    "scatter_add": "indexed",
    "index_add": "scatter_add",
    "foreach": "pointwise",
    "foreach_copy": "foreach",
}
"""Kernels of which a machine may have a price, each with the one whose price it has by default."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """What a kernel takes beside a launch and its bytes at the full rate of the memory.

    The defaults are those of a kernel that reaches what the machine can do.

    Attributes:
        share: Percent of the HBM's bandwidth that it reaches; of a convolution that multiplies
            matrices: of the rate of the matrix engines.
        element: Operations of the MATH engines for each element of its result; of pools and of
            convolutions of single channels: for each of the window's elements.
        row: Operations of all MATH engines together for each row, or for each plane of a channel,
            or for each column of a recurrent step; of pools and of convolutions of single channels:
            for each element of the result; of other convolutions: of one PE beside each tile.
        beyond: Columns of a row (of sums: elements; of embeddings: indices) up to which the kernel
            is a simpler one, without `row` and `launches`; of `recurrent_held`: width of the state
            up to which it is the kernel.
        launches: Launches that it takes, one after another; also what a fixed part of its time is
            counted in.
        alone: Operations of one PE for each element of what one block reads alone, such as a
            channel of a batch norm: few blocks leave PEs idle.
        few: Rows for which a kernel that gives a block to each row takes twice as long for its
            bytes as for very many; of `r` rows, they take `1 + few / r` times as long.
    """

    share: Percent = 100
    element: Annotated[int, Range(0, 1 << 20)] = 1
    row: Annotated[int, Range(0, 1 << 30)] = 0
    beyond: Annotated[int, Range(0, 1 << 40)] = 0
    launches: Annotated[int, Range(0, 1 << 16)] = 1
    alone: Annotated[int, Range(0, 1 << 20)] = 0
    few: Annotated[int, Range(0, 1 << 20)] = 0


_TCM: Final = TcmSpec()
_SRAM: Final = SramSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeSpec:
    """A processing element (an SM of a GPU) with its scratch memory and engines.

    Attributes:
        tcm: Tightly coupled memory, private to the PE.
        issue: Time that the scalar unit spends on issuing one tile command. Default: that of
            `h200x8`, an estimate.
        poll_interval: Time between two looks at a queue under `backpressure: poll`. Default: that
            of `h200x8`, an estimate.
        dma: Rate of the DMA engine, each direction. Default: the bandwidth of the cube's HBM, since
            the program of a collective stands for all PEs that share the work.
        gemm: Matrix engine.
        math: Elementwise engine, in operations a second. Default: a 32nd of the `bf16` rate,
            as on an A100; but at least one operation for every two bytes of the network's fastest
            link, so that reductions of 16-bit floats keep up with it.
        attention: Kernels of attention; those that are left out have the default. Default: tiles of
            128 x 128 at the rates of `gemm` and `math`, 5 operations a score, no other times.
        programs: How programs of one launch share it. Default: limits of an SM of an H100, no times
            beside those of the engines and memories.
    """

    tcm: TcmSpec = _TCM
    issue: Latency = Ps(2_000)
    poll_interval: Annotated[Ps, Range(1, 10**12)] = Ps(100_000)
    dma: Bandwidth = FOLLOWS
    gemm: GemmSpec
    math: FlopRate = FOLLOWS
    attention: tuple[AttentionSpec, ...] = ()
    programs: ProgramsSpec = _PROGRAMS


@dataclass(frozen=True, slots=True)
class CubeSpec:
    """A die: PEs around one HBM stack and one shared SRAM.

    Attributes:
        pes: Number of PEs.
        hbm: The HBM stack.
        sram: The shared SRAM.
    """

    pes: Count
    hbm: HbmSpec
    sram: SramSpec = _SRAM


@dataclass(frozen=True, slots=True)
class CubeGridSpec:
    """How the cubes of a SIP are laid out: a mesh with a link between neighbours.

    Attributes:
        shape: Columns and rows. Default: one cube, as in a GPU.
        link: Link between neighbouring cubes, each direction. Default: none, which is refused when
            there are several cubes.
    """

    shape: tuple[Count, Count] = (1, 1)
    link: LinkSpec | None = None


_ONE_CUBE: Final = CubeGridSpec()


@dataclass(frozen=True, slots=True)
class OverlapSpec:
    """How collectives and messages share a SIP with kernels that have a program for each PE.

    Attributes:
        notice: A collective or message that is ready while such a kernel runs, or less than this
            before one begins, begins when the kernel ends.
        kernel: By how many percent a collective slows a kernel that begins beside it.
        message: By how many percent a message slows a kernel that begins beside it.
        collective: By how many percent such a kernel slows a collective or message.
    """

    notice: Latency
    kernel: Annotated[int, Range(0, 99)] = 0
    message: Annotated[int, Range(0, 99)] = 0
    collective: Annotated[int, Range(0, 99)] = 0


@dataclass(frozen=True, slots=True)
class WarmSpec:
    """What the L2 of a SIP still has when the next kernel of a CUDA graph begins.

    Attributes:
        kept: Bytes that were touched last.
        bandwidth: Bytes a second of a kernel that finds all of its operands there.
    """

    kept: Bytes
    bandwidth: Bandwidth


@dataclass(frozen=True, slots=True)
class PeersSpec:
    """What it takes to reach memory of another SIP, beside the links between them.

    Attributes:
        atomic: Time of an atomic operation where the memory is, for which its program waits.
        fence: Time until all that a program has written is there, before a word says so.
        copy: Time from the start of a copy by an engine that only copies until its first byte.
    """

    atomic: Latency = Ps(0)
    fence: Latency = Ps(0)
    copy: Latency = Ps(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SipSpec:
    """One accelerator package; a GPU is a SIP with one cube.

    Attributes:
        launch: Device time from the start of a kernel to its first instruction, plus the time of
            its retirement. Default: measured on an H200, the smallest copy.
        collective_launch: Launch time of a collective's kernel, which also meets its peers.
            Default: measured on 8 H200, NCCL's protocol LL.
        event: Time that a stream takes to record an event with a time. Default: none.
        clock: Clock of the PEs, as a kernel counts its cycles. No rate follows from it. Default:
            not known.
        overlap: What collectives and messages and kernels of all PEs do to each other. Default:
            nothing.
        warm: What kernels of a CUDA graph find in the L2. Default: nothing.
        peers: What it takes to reach memory of other SIPs. Default: the links alone.
        cubes: Layout of the cubes.
        cube: Each cube; all of a SIP are alike.
        pe: Each PE; all of a SIP are alike.
        kernels: What kernels of the library take, by `KERNELS`. Default: that of the kernel they
            are like; at last, that they reach what the machine can do.
    """

    launch: Latency = Ps(1_400_000)
    collective_launch: Latency = Ps(9_600_000)
    event: Latency = Ps(0)
    clock: Frequency | None = None
    overlap: OverlapSpec | None = None
    warm: WarmSpec | None = None
    peers: PeersSpec = PeersSpec()
    cubes: CubeGridSpec = _ONE_CUBE
    cube: CubeSpec
    pe: PeSpec
    kernels: dict[str, KernelSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """A cable of a `graph` network, both directions; a name that is no `sipN` is a router.

    Attributes:
        ends: The two nodes.
        bandwidth: Overrides the network's.
        latency: Overrides the network's.
    """

    ends: tuple[str, str]
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node of a `nodes` network: SIPs around a switch of their own.

    Attributes:
        size: SIPs of one node.
        bandwidth: Payload bytes a second of one port of the node's switch, one direction.
        latency: Latency of the whole crossing.
    """

    size: Count
    bandwidth: Bandwidth
    latency: Latency


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """A leaf switch of a `fat_tree` network.

    Attributes:
        size: SIPs on one leaf.
    """

    size: Count


@dataclass(frozen=True, slots=True)
class SpineSpec:
    """The switches above the leaves of a `nodes` or `fat_tree` network.

    Attributes:
        count: How many; each leaf has a link to every one of them.
        latency: What a way over a spine takes beyond one that turns round in its leaf.
        oversubscription: Bandwidth of all NICs on a leaf over that of all its links to spines.
    """

    count: Annotated[int, Range(1, 1 << 10)]
    latency: Latency
    oversubscription: Annotated[int, Range(1, 1 << 10)] = 1


@dataclass(frozen=True, slots=True)
class PortSpec:
    """The connection of one SIP to the network, as far as SIPs may differ in it.

    Attributes:
        bandwidth: Bandwidth of the SIP's cables, of its port of the switch, or of its NIC; see
            `NetworkSpec`.
        latency: Latency of the connection; see `NetworkSpec`.
        node: The SIP's port of the switch of its node, in a network of `nodes`.
    """

    bandwidth: Bandwidth
    latency: Latency
    node: LinkSpec | None = None


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Links between SIPs.

    Attributes:
        kind: `ring` and `torus` (chunked FIFO, cut-through), `switch` (fluid fair share over
            source egress and destination ingress), `graph` (the listed edges, chunked FIFO),
            `nodes` (a switch in each node; between nodes a NIC a SIP, NICs of the same place in
            their nodes on one leaf, leaves joined by spines; fluid), `fat_tree` (a NIC a SIP,
            neighbours on one leaf, leaves joined by spines; fluid).
        bandwidth: Payload bytes a second of one link (of one port of a switch, of one NIC), one
            direction.
        latency: Latency of one link; for a switch, of the whole crossing; for `nodes` and
            `fat_tree`, from NIC to NIC through one leaf.
        chunk: Largest piece that holds a FIFO link before another flow may have it. Default: small
            beside what links carry in the time of a message, so that flows share them evenly.
        shape: Extents of a torus; their product is the number of SIPs.
        edges: Cables of a `graph`.
        node: Each node of a network of `nodes`.
        leaf: Each leaf of a `fat_tree`.
        spine: Switches that join the leaves of `nodes` or a `fat_tree`; absent for a single leaf.
    """

    kind: Literal["ring", "torus", "switch", "graph", "nodes", "fat_tree"]
    bandwidth: Bandwidth
    latency: Latency
    chunk: Annotated[Bytes, Range(64, 1 << 30)] = _CHUNK
    shape: tuple[Count, ...] | None = None
    edges: tuple[EdgeSpec, ...] | None = None
    node: NodeSpec | None = None
    leaf: LeafSpec | None = None
    spine: SpineSpec | None = None

    @property
    def port(self) -> PortSpec:
        """The connection of each SIP that the machine file does not change."""
        node = self.node
        inside = None if node is None else LinkSpec(node.bandwidth, node.latency)
        return PortSpec(self.bandwidth, self.latency, inside)

    @property
    def fastest(self) -> Bandwidth:
        """The bandwidth of the fastest link between SIPs."""
        others = [edge.bandwidth for edge in self.edges or () if edge.bandwidth is not None]
        if self.node is not None:
            others.append(self.node.bandwidth)
        return max([self.bandwidth, *others])


@dataclass(frozen=True, slots=True)
class ChangedSpec:
    """How some SIPs differ from `system.sip`, and their ports from `system.sips.network`.

    Attributes:
        which: Numbers of the SIPs.
        sip: New values of these SIPs in place of values of `system.sip`. `cubes.shape` must stay.
        link: New values of these SIPs' ports in place of values of the network. A cable is as slow
            as the slower of its two ends. The latency of a port of a switch delays messages that
            the SIP sends; the excess over the network's latency also delays messages that the SIP
            receives.
    """

    which: tuple[Annotated[int, Range(0, MAX_SIPS - 1)], ...]
    sip: Changes[SipSpec] = _NOTHING
    link: Changes[PortSpec] = _NOTHING


@dataclass(frozen=True, slots=True)
class SipsSpec:
    """All accelerators of the machine.

    Attributes:
        count: Number of SIPs; the most ranks that a program may have.
        network: Links between the SIPs.
        changed: SIPs that differ from `system.sip`. Several entries may change one SIP, but no
            two of them the same value.
    """

    count: Annotated[int, Range(1, MAX_SIPS)]
    network: NetworkSpec
    changed: tuple[ChangedSpec, ...] = ()

    def alike(self) -> list[tuple[tuple[int, ...], Changes[SipSpec]]]:
        """Returns the SIPs that differ from `system.sip`, those that are alike together."""
        alike: dict[frozenset[Any], tuple[list[int], Changes[SipSpec]]] = {}
        for sip, changes in _by_sip((entry.which, entry.sip) for entry in self.changed).items():
            # Not the values themselves, since tiles of libraries cannot be hashed.
            key = frozenset((names, repr(value)) for names, value in changes.values.items())
            alike.setdefault(key, ([], changes))[0].append(sip)
        return [(tuple(which), changes) for which, changes in alike.values()]


_HOST: Final = HostSpec()


@dataclass(frozen=True, kw_only=True)  # without slots, since cached properties need a `__dict__`
class SystemSpec:
    """A machine.

    Attributes:
        name: Name in tables and traces.
        description: One line for `kernbench list`. Default: empty.
        host: Each rank's processor.
        sips: The accelerators and their network.
        sip: Description of every SIP, but for what `sips.changed` changes in some.
        algorithms: Algorithms of the shipped `ccl.yaml` that the machine's library has. Each
            operation uses the fastest of them that implements it, or inside a node what their
            library takes by its own `tuning`; if none does, the fastest of the file. A `ccl.yaml`
            of the user's own decides for itself.
        queue: Profile of `queues` in `ccl.yaml` for algorithms that say nothing about queues; where
            the file has no such profile, and for null, they have its `defaults`. Default: large
            slots in the SRAM, which keep links of 900 GB/s and 500 ns busy; faster links, or those
            with more latency, need larger ones.
    """

    name: str
    description: str = ""
    host: HostSpec = _HOST
    sips: SipsSpec
    sip: SipSpec
    algorithms: tuple[str, ...] = ()
    queue: str | None = "nvlink"

    def sip_of(self, sip: int) -> SipSpec:
        """Returns the description of a SIP; SIPs that are alike share one object."""
        return self.kinds[self.kind_of(sip)]

    def kind_of(self, sip: int) -> int:
        """Returns the place of a SIP in `kinds`; caches use it as their key."""
        return self._changed_kinds.get(sip, 0)

    @property
    def kinds(self) -> tuple[SipSpec, ...]:
        """All different SIPs of the machine: the unchanged one first, if there is any."""
        return self._kinds[0]

    @cached_property
    def _changed_kinds(self) -> Mapping[int, int]:
        return self._kinds[1]

    @cached_property
    def _kinds(self) -> tuple[tuple[SipSpec, ...], Mapping[int, int]]:
        """All different SIPs, and the kind of each that the machine changes."""
        changes = _by_sip((entry.which, entry.sip) for entry in self.sips.changed)
        numbers: dict[frozenset[Any], int] = {}
        kinds: list[SipSpec] = []
        found = {}
        if len(changes) < self.sips.count:
            numbers[frozenset()] = 0
            kinds.append(self.sip)
        for sip, changed in sorted(changes.items()):
            differing = changed.but_for(self.sip)
            key = frozenset(differing.values.items())
            if key not in numbers:
                numbers[key] = len(kinds)
                kinds.append(differing.applied(self.sip))
            found[sip] = numbers[key]
        return tuple(kinds), found

    def field_of(self, sip: int, *names: str) -> str:
        """Returns the field of the machine file that gives a value of a SIP.

        Args:
            sip: Number of the SIP.
            names: Names that lead from the SIP to the value.
        """
        for number, entry in enumerate(self.sips.changed):
            if sip in entry.which and names in entry.sip.values:
                return ".".join((f"system.sips.changed[{number}].sip", *names))
        return ".".join(("system.sip", *names))

    def with_hbm(self, capacity: Bytes) -> "SystemSpec":
        """Returns the machine with `capacity` bytes of HBM in each cube of every SIP."""
        changes: Changes[SipSpec] = Changes({HBM_CAPACITY: capacity})
        changed = tuple(
            replace(entry, sip=Changes({**entry.sip.values, **changes.values}))
            for entry in self.sips.changed
        )
        return replace(
            self, sip=changes.applied(self.sip), sips=replace(self.sips, changed=changed)
        )

    @cached_property
    def changed_ports(self) -> Mapping[int, Changes[PortSpec]]:
        """How ports differ from the network's, by SIP."""
        return _by_sip((entry.which, entry.link) for entry in self.sips.changed)


def _by_sip(
    entries: Iterable[tuple[tuple[int, ...], Changes[Part]]],
) -> dict[int, Changes[Part]]:
    """Returns the changes of each SIP from all entries together."""
    values: dict[int, dict[Names, Any]] = {}
    for which, changes in entries:
        for sip in which:
            values.setdefault(sip, {}).update(changes.values)
    return {sip: Changes(found) for sip, found in values.items()}


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A topology file: one key, `system`."""

    system: SystemSpec
