"""The machine on paper: frozen, already checked. Units are in the types."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeVar

from kernbench.config.schema import Changes, Names, Range
from kernbench.units import Bandwidth, Bytes, FlopRate, Ps

Latency = Annotated[Ps, Range(0, 10**12)]
Count = Annotated[int, Range(1, 1 << 20)]

Part = TypeVar("Part")

MAX_SIPS: Final = 1 << 17

HBM_CAPACITY: Final = ("cube", "hbm", "capacity")
_NOTHING: Final[Changes[Any]] = Changes({})

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
class PortSpec:
    """What connects one SIP to the network, as far as the SIP may differ from the others.

    Attributes:
        bandwidth: That of `NetworkSpec`: of its cables, of its port of the switch, of its NIC.
        latency: That of `NetworkSpec`.
        node: Its port of the switch of its node, in a network of `nodes`.
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

    @property
    def port(self) -> PortSpec:
        """What connects each SIP to the network that is not changed."""
        node = self.node
        inside = None if node is None else LinkSpec(node.bandwidth, node.latency)
        return PortSpec(self.bandwidth, self.latency, inside)


@dataclass(frozen=True, slots=True)
class ChangedSpec:
    """How some SIPs differ from `system.sip`, and their ports from `system.sips.network`.

    Attributes:
        which: The SIPs.
        sip: Their values, in place of those of `system.sip`. `cubes.shape` must stay.
        link: Their values, in place of those of the network. A cable is as slow as the slower of
            its two ends. The latency of a port of a switch counts for what the SIP sends; what it
            has above the network's, also for what the SIP receives.
    """

    which: tuple[Annotated[int, Range(0, MAX_SIPS - 1)], ...]
    sip: Changes[SipSpec] = _NOTHING
    link: Changes[PortSpec] = _NOTHING


@dataclass(frozen=True, slots=True)
class SipsSpec:
    """All accelerators of the machine.

    Attributes:
        count: How many; the most ranks that a program may have.
        network: Links between them.
        changed: Those that differ from `system.sip`. Several entries may change one SIP, but no
            two the same value of it.
    """

    count: Annotated[int, Range(1, MAX_SIPS)]
    network: NetworkSpec
    changed: tuple[ChangedSpec, ...] = ()


@dataclass(frozen=True)  # without slots: what follows from the fields is kept
class SystemSpec:
    """A machine.

    Attributes:
        name: What tables and traces call it.
        description: One line for `kernbench list`.
        host: Each rank's processor.
        sips: The accelerators and their network.
        sip: What a SIP is, unless `sips.changed` says otherwise; see `sip_of`.
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

    def sip_of(self, sip: int) -> SipSpec:
        """Returns what a SIP is; SIPs that are alike are the very same object."""
        return self.kinds[self.kind_of(sip)]

    def kind_of(self, sip: int) -> int:
        """Returns the place of a SIP in `kinds`: what else depends on a SIP is kept by it."""
        return self._changed_kinds.get(sip, 0)

    @property
    def kinds(self) -> tuple[SipSpec, ...]:
        """All different SIPs of the machine: the unchanged first, if there are any."""
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
        """Returns the field of the file that says what a SIP has where names lead to."""
        for number, entry in enumerate(self.sips.changed):
            if sip in entry.which and names in entry.sip.values:
                return ".".join((f"system.sips.changed[{number}].sip", *names))
        return ".".join(("system.sip", *names))

    def with_hbm(self, capacity: Bytes) -> "SystemSpec":
        """Returns the machine with so many bytes of HBM in each cube of every SIP."""
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
        """By SIP, how its ports differ from the network's."""
        return _by_sip((entry.which, entry.link) for entry in self.sips.changed)


def _by_sip(
    entries: Iterable[tuple[tuple[int, ...], Changes[Part]]],
) -> dict[int, Changes[Part]]:
    """Returns all changes of each SIP together."""
    values: dict[int, dict[Names, Any]] = {}
    for which, changes in entries:
        for sip in which:
            values.setdefault(sip, {}).update(changes.values)
    return {sip: Changes(found) for sip, found in values.items()}


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A topology file: one key, `system`."""

    system: SystemSpec
