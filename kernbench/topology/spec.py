"""The machine on paper: frozen, already checked. Units are in the types."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from kernbench.config.schema import Range
from kernbench.units import Bandwidth, Bytes, FlopRate, Ps

Latency = Annotated[Ps, Range(0, 10**12)]
Count = Annotated[int, Range(1, 1 << 20)]

_CHUNK: Final = Bytes(64 << 10)


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
"""Unless the machine says otherwise: 40 us and 3 GB/s, for which no machine is calibrated.

About what two processes of one small host reach through Gloo's TCP (PyTorch 2.13, 2 cores): 4 B in
40 us, 64 MiB in 22 ms.
"""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The processor that issues commands; one per rank.

    Attributes:
        dispatch: Host time spent to issue one command.
        launch_queue: Commands that may be outstanding on a device before the host blocks.
        pcie: Host-to-device path, each direction.
        gloo: A message between the hosts of two ranks, as Gloo sends it.
    """

    dispatch: Latency
    launch_queue: Count
    pcie: LinkSpec
    gloo: LinkSpec = _GLOO


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
class GemmSpec:
    """The matrix engine of a PE.

    Attributes:
        rate: FLOP a second by dtype name (`fp32`, `bf16`, `fp16`, `fp64`, `fp8`, `int8`, `int32`).
        tile: Rows and columns of the output tile that a library kernel gives to one PE.
    """

    rate: dict[str, FlopRate]
    tile: tuple[Count, Count]


@dataclass(frozen=True, slots=True)
class PeSpec:
    """A processing element (an SM of a GPU) with its scratch memory and engines.

    Attributes:
        tcm: Tightly coupled memory, private to the PE.
        issue: Time its scalar unit spends on issuing one tile command.
        poll_interval: Time between two looks at a queue under `backpressure: poll`.
        dma: Rate of its DMA engine, each direction.
        gemm: Matrix engine.
        math: Elementwise engine, in operations a second.
    """

    tcm: MemorySpec
    issue: Latency
    poll_interval: Annotated[Ps, Range(1, 10**12)]
    dma: Bandwidth
    gemm: GemmSpec
    math: FlopRate


@dataclass(frozen=True, slots=True)
class CubeSpec:
    """A die: PEs around one HBM stack and one shared SRAM."""

    pes: Count
    hbm: MemorySpec
    sram: MemorySpec


@dataclass(frozen=True, slots=True)
class CubeGridSpec:
    """How the cubes of a SIP are laid out: a mesh with a link between neighbours.

    Attributes:
        shape: Columns and rows.
        link: Link between neighbouring cubes, each direction; absent when there is one cube.
    """

    shape: tuple[Count, Count]
    link: LinkSpec | None = None


@dataclass(frozen=True, slots=True)
class SipSpec:
    """One accelerator package; a GPU is a SIP with one cube.

    Attributes:
        launch: Device time from a kernel's start to its first instruction, and of its retirement.
        collective_launch: The same for a collective, which also meets its peers.
        cubes: Layout of the cubes.
        cube: Every cube is alike.
        pe: Every PE is alike.
    """

    launch: Latency
    collective_launch: Latency
    cubes: CubeGridSpec
    cube: CubeSpec
    pe: PeSpec


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
        latency: Of the whole crossing.
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
        latency: Of one link; of the whole crossing for a switch; from NIC to NIC through one leaf
            for `nodes` and `fat_tree`.
        chunk: Largest piece that holds a FIFO link before another flow may have it.
        shape: Extents of a torus; their product is the number of SIPs.
        edges: Cables of a `graph`.
        node: What a node of `nodes` is.
        leaf: What a leaf of a `fat_tree` is.
        spine: Switches above the leaves of `nodes` or a `fat_tree`; absent when nothing is to join.
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


@dataclass(frozen=True, slots=True)
class SipsSpec:
    """All accelerators of the machine.

    Attributes:
        count: How many; the most ranks that a program may have.
        network: Links between them.
    """

    count: Annotated[int, Range(1, 1 << 17)]
    network: NetworkSpec


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A machine.

    Attributes:
        name: What tables and traces call it.
        description: One line for `kernbench list`.
        host: Each rank's processor.
        sips: The accelerators and their network.
        sip: Every SIP is alike.
        algorithms: Those of the shipped `ccl.yaml` that its library has: the fastest of them is
            used for each operation, or of all if none of them has it. A `ccl.yaml` of the user's
            own decides for itself.
        queue: The profile of `queues` in `ccl.yaml` for algorithms that say nothing about theirs.
    """

    name: str
    description: str
    host: HostSpec
    sips: SipsSpec
    sip: SipSpec
    algorithms: tuple[str, ...] = ()
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A topology file: one key, `system`."""

    system: SystemSpec
