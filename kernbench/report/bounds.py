"""What bounds each command: its time, by resource."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from kernbench.hw.attention import peak_of
from kernbench.hw.explained import Explained, Resource, Spent
from kernbench.report.breakdown import COMMUNICATION, COMPUTE
from kernbench.report.records import is_engine
from kernbench.sim_engine.op_log import Record, Unkept
from kernbench.topology import Topology
from kernbench.units import PS_PER_S

Bound = Literal[Resource, "link", "protocol", "messages", "PCIe", "ranks", "beside", "host", "idle"]
"""What time is spent on.

Beside resources of a device: `link` and `protocol` are what a collective or message takes for its
bytes and beyond them, `messages` both together where the messages are not kept (`OpLog.unkept`),
`ranks` what it waits for others, `beside` what a kernel takes longer since
others run; `host` and `idle` are gaps of a device, see `RankBreakdown`.
"""

_ENGINES: Final[Mapping[str, Bound]] = {"gemm": "tensor", "math": "math", "dma": "HBM"}
"""Resources by the engine of a PE that uses them."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a stream, and what its time was spent on.

    Attributes:
        record: Its record.
        parts: Its time, by bound and law; the picoseconds add up to it.
    """

    record: Record
    parts: Mapping[tuple[Bound, str], Spent]


_Key = tuple[int, int]
"""Rank and time of issue: all records of a command have them."""


def commands(
    records: Iterable[Record], topology: Topology, unkept: Mapping[_Key, Unkept]
) -> list[Command]:
    """Returns the commands of streams that take time, in the order of the records.

    Args:
        records: Records of the run.
        topology: The machine.
        unkept: Collectives of which no record has the messages, as the log knows them.
    """
    streams: list[Record] = []
    engines: dict[_Key, list[Record]] = {}
    for record in records:
        if is_engine(record.track) and record.category not in {"host", "range"}:
            engines.setdefault((record.rank, record.issued), []).append(record)
        elif record.end > record.start and record.category in (
            *COMPUTE,
            *COMMUNICATION,
            "copy",
        ):
            streams.append(record)
    together = _Together(streams, engines, topology, unkept)
    return [
        together.command(record)
        if record.category in COMMUNICATION
        else Command(record, _parts(record, engines, topology))
        for record in streams
    ]


def _parts(
    record: Record, engines: Mapping[_Key, Sequence[Record]], topology: Topology
) -> Mapping[tuple[Bound, str], Spent]:
    took, price = record.end - record.start, record.price
    if isinstance(price, Explained):
        known = int(price)
        if took < known:
            return dict(price.lasting(took).parts.items())
        beside = took - known
        known_parts: dict[tuple[Bound, str], Spent] = dict(price.parts.items())
        if beside:
            known_parts["beside", ""] = Spent(beside, 0)
        return known_parts
    if record.category == "copy":
        streamed = took if price is None else min(price, took)
        before: dict[tuple[Bound, str], Spent] = {("launch", _PCIE): Spent(took - streamed, 0)}
        return before | {("PCIe", _PCIE): Spent(streamed, streamed)}
    if record.category == "kernel":
        return _of_program(took, engines.get((record.rank, record.issued), ()), topology)
    return {("other", ""): Spent(took, 0)}


def _of_program(
    took: int, engines: Sequence[Record], topology: Topology
) -> Mapping[tuple[Bound, str], Spent]:
    """Returns what a kernel of the program is spent on: the engine that is busy longest."""
    system = topology.machine.system
    launch = min(system.sip.launch, took)
    busy: dict[Bound, int] = {}
    for record in engines:
        engine = _ENGINES.get(record.track.split(".")[1])
        if engine is not None:
            busy[engine] = busy.get(engine, 0) + record.end - record.start
    longest: Bound = max(busy, key=lambda each: (busy[each], each), default="other")
    pes = topology.num_cubes * system.sip.cube.pes
    roof = min(busy.get(longest, 0) // pes, took - launch)
    parts: dict[tuple[Bound, str], Spent] = {}
    if launch:
        parts["launch", _PROGRAM] = Spent(launch, launch)
    if took > launch:
        parts[longest, _PROGRAM] = Spent(took - launch, roof)
    return parts


_PCIE: Final = "host.pcie"
_PROGRAM: Final = "tile by tile"


class _Together:
    """Collectives and messages: who takes part in each, and what its links carry."""

    def __init__(
        self,
        streams: Iterable[Record],
        engines: Mapping[_Key, Sequence[Record]],
        topology: Topology,
        unkept: Mapping[_Key, Unkept],
    ) -> None:
        self._topology: Final = topology
        self._unkept: Final = unkept
        self._starts: Final[dict[object, int]] = {}
        self._sends: Final[dict[object, list[Record]]] = {}
        ends: dict[int, list[_Key]] = {}
        for key, found in engines.items():
            for record in found:
                if record.flow:
                    ends.setdefault(record.flow, []).append(key)
        calls: dict[object, list[_Key]] = {}
        begun: dict[_Key, int] = {}
        for record in streams:
            if record.category in COMMUNICATION:
                key = record.rank, record.issued
                begun[key] = max(record.start, begun.get(key, 0))
                calls.setdefault(_call(record), []).append(key)
        for call, keys in calls.items():
            own = dict.fromkeys(keys)
            # A message has another end, which the flow of its bytes knows.
            flows = [each.flow for key in own for each in engines.get(key, ()) if each.flow]
            every = dict.fromkeys((*own, *(key for flow in flows for key in ends[flow])))
            self._starts[call] = max(begun.get(key, 0) for key in every)
            wanted = set(flows)
            self._sends[call] = [
                each
                for key in every
                for each in engines.get(key, ())
                if each.category == "send" and each.flow in wanted
            ]

    def command(self, record: Record) -> Command:
        """Returns what a collective or message is spent on."""
        call, left = _call(record), record.end - record.start
        sends = self._sends[call]
        law = f"ccl.{record.args.get('algorithm', 'messages')}"
        wait = self._starts[call] - record.start
        begins = min((send.start for send in sends), default=record.end)
        link = max(carried_ps(sends, self._topology).values(), default=0)
        parts: dict[tuple[Bound, str], Spent] = {}
        unkept = self._unkept.get((record.rank, record.issued))
        told: tuple[tuple[Bound, int], ...] = (
            ("ranks", wait),
            ("launch", begins - max(record.start, self._starts[call])),
            ("link", link),
            ("protocol", left),
        )
        if unkept is not None:
            told = (
                ("ranks", unkept.joined - record.start),
                ("launch", unkept.begins - unkept.joined),
                ("messages", left),
            )
        for bound, ps in told:
            took = max(0, min(ps, left))
            left -= took
            if took:
                parts[bound, law] = Spent(took, took if bound in {"link", "launch"} else 0)
        return Command(record, parts)


def _call(record: Record) -> object:
    """Returns what tells the call of all ranks from others; a message is the rank's own."""
    args: Mapping[str, Any] = record.args
    if "sequence" in args and "peer" not in args:
        return record.name, args.get("group"), args["sequence"]
    return record.rank, record.issued


def carried_ps(sends: Iterable[Record], topology: Topology) -> dict[str, int]:
    """Returns what links take for the bytes of messages at their full bandwidth, in picoseconds.

    Args:
        sends: Records of the messages; others are left out.
        topology: The machine.
    """
    nbytes: dict[str, int] = {}
    for send in sends:
        for name in send.args.get("links", ()):
            nbytes[name] = nbytes.get(name, 0) + int(send.args.get("bytes", 0))
    return {
        link.name: -(-nbytes[link.name] * PS_PER_S // link.bandwidth.per_second)
        for link in topology.links
        if link.name in nbytes
    }


def peak_flop(topology: Topology, sip: int) -> int:
    """Returns the operations a second that a SIP reaches at most in products of `bf16`."""
    return peak_of(topology.machine.system.sip_of(sip).pe.gemm).per_second * topology.num_pes(sip)
