"""How busy hosts, streams, engines and links are over time, and how full memories are."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from kernbench.pages.bins import Bins
from kernbench.pages.page import Fold, Note, Part, Strip, Strips, left_out
from kernbench.report.breakdown import COMMUNICATION, COMPUTE, host_interval
from kernbench.report.intervals import Interval, union
from kernbench.report.records import is_engine
from kernbench.sim_engine.op_log import MemoryChange, Record
from kernbench.topology import Topology
from kernbench.units import PS_PER_S, format_bytes

_MOST_STRIPS: Final = 32
_OPEN_STRIPS: Final = 8
_WHOLE: Final = 1000
"""The full height of a strip."""

_NUMBER: Final = re.compile(r"(?<=[a-z])\d+(?=\.)")

HOST, KERNELS, COMMUNICATING, COPIES = "host", "kernels", "communication", "copies"
_ON_STREAMS: Final = (HOST, KERNELS, COMMUNICATING, COPIES)


@dataclass(frozen=True, slots=True)
class Ranks:
    """What is known of the ranks of a run beside the log.

    Attributes:
        topology: The machine.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves.
        sips: SIP of each rank whose number differs from that of its SIP.
    """

    topology: Topology
    dispatch_ps: int
    sips: Mapping[int, int]

    def sip(self, rank: int) -> int:
        """Returns the SIP of a rank."""
        return self.sips.get(rank, rank)

    def label(self, rank: int) -> str:
        """Returns the name of a rank."""
        return "main" if rank < 0 else f"rank {rank}"

    def engines(self, rank: int, kind: str, seen: int) -> int:
        """Returns how many engines of a kind a rank has; of DMA channels, those that it used.

        Args:
            rank: Global rank; main uses the SIP of rank 0.
            kind: Such as `pe.gemm`.
            seen: Number of such engines in the log.
        """
        return self.topology.num_pes(self.sip(max(rank, 0))) if kind.startswith("pe.") else seen


def span_of(records: Iterable[Record], dispatch_ps: int) -> Interval:
    """Returns the time from the first action of any host to the end of the last record."""
    start, end = 0, 0
    first = True
    for record in records:
        if record.category == "range":
            continue
        begin = host_interval(record, dispatch_ps)[0]
        start = begin if first else min(start, begin)
        end = max(end, record.end)
        first = False
    return start, end


Busy = dict[str, dict[int, tuple[list[int], int]]]
"""By kind and rank: the busy picoseconds of each bin, summed over engines, and their number."""


def busy_times(records: Iterable[Record], ranks: Ranks, bins: Bins) -> Busy:
    """Returns how busy each kind of thing is in each bin, by kind and rank.

    Kinds are `host`, `kernels`, `communication` and `copies` for what hosts and streams do, then
    engines such as `pe.gemm` and `dma.send`. Of a thing that does several at once, every picosecond
    counts once.

    Args:
        records: Records of the run.
        ranks: What is known of the ranks beside the log.
        bins: Bins of simulated time.
    """
    found: dict[tuple[str, int, str], list[Interval]] = {}
    kinds: dict[str, str] = {}
    for record in records:
        category, track, rank = record.category, record.track, record.rank
        if category == "range":
            continue
        if category != "host" and is_engine(track):
            kind = kinds.get(track)
            if kind is None:
                kind = kinds[track] = _NUMBER.sub("", track, count=1)
            found.setdefault((kind, rank, track), []).append((record.start, record.end))
            continue
        # All engines' records of a command carry its one issue; the stream's record is enough.
        host = host_interval(record, ranks.dispatch_ps)
        found.setdefault((HOST, rank, ""), []).append(host)
        kind = _kind_on_stream(record)
        if kind:
            found.setdefault((kind, rank, ""), []).append((record.start, record.end))
    busy: Busy = {}
    for kind, rank, track in sorted(found, key=_order):
        binned = bins.busy(union(found[kind, rank, track]))
        sums, number = busy.setdefault(kind, {}).get(rank, ([0] * len(binned), 0))
        both = [one + other for one, other in zip(sums, binned, strict=True)]
        busy[kind][rank] = both, number + 1
    return busy


def _kind_on_stream(record: Record) -> str:
    if record.category in COMPUTE:
        return KERNELS
    if record.category in COMMUNICATION:
        return COMMUNICATING
    return COPIES if record.category == "copy" else ""


def _order(key: tuple[str, int, str]) -> tuple[int, str, int, str]:
    kind, rank, track = key
    place = _ON_STREAMS.index(kind) if kind in _ON_STREAMS else len(_ON_STREAMS)
    return place, kind, rank, track


def engine_charts(records: Iterable[Record], ranks: Ranks, bins: Bins) -> list[Part]:
    """Returns charts of hosts, streams and engines: the mean over ranks, then each rank.

    Args:
        records: Records of the run.
        ranks: What is known of the ranks beside the log.
        bins: Bins of simulated time.
    """
    busy = busy_times(records, ranks, bins)
    above = [kind for kind in busy if kind in _ON_STREAMS]
    engines = [kind for kind in busy if kind not in _ON_STREAMS]
    parts: list[Part] = []
    for title, kinds, each in (
        ("Hosts and streams, mean of ranks", above, "Hosts and streams of each rank"),
        ("Engines, mean of ranks", engines, "Engines of each rank"),
    ):
        if not kinds:
            continue
        means, by_rank = [], list[Part]()
        for kind in kinds:
            rows = {
                rank: (sums, ranks.engines(rank, kind, number))
                for rank, (sums, number) in busy[kind].items()
            }
            columns = zip(*(sums for sums, _ in rows.values()), strict=True)
            total = [sum(column) for column in columns]
            number = sum(number for _, number in rows.values())
            means.append(_strip(_engine_label(kind), total, number, bins))
            strips = [
                (sum(sums), _strip(ranks.label(rank), sums, number, bins))
                for rank, (sums, number) in rows.items()
            ]
            if len(strips) > 1:
                by_rank += _chart(_engine_label(kind), strips, "ranks", bins)
        parts.append(_strips(title, means, bins))
        if by_rank:
            parts.append(Fold(each, by_rank))
    if engines:
        parts.append(
            Note(
                "Engines show the parts of tile kernels and collectives. Kernels of the library "
                "hold a whole device: they are among the kernels of streams. 100% of a kind of "
                "PE engine is every PE of the SIP; of DMA, every channel that the rank used."
            )
        )
    return parts


def _engine_label(kind: str) -> str:
    return f"PE {kind[3:]}" if kind.startswith("pe.") else kind


def _strip(label: str, busy: Sequence[int], number: int, bins: Bins) -> Strip:
    """Returns the strip of things that are busy for some picoseconds of each bin."""
    lengths = bins.lengths()
    values = [
        min(_WHOLE, _WHOLE * time // (length * number))
        for time, length in zip(busy, lengths, strict=True)
    ]
    mean = sum(busy) / (bins.span * number)
    return Strip(label, values, _said(mean, max(values) / _WHOLE))


def _said(mean: float, peak: float) -> str:
    return f"mean {_percent(mean)}, peak {_percent(peak)}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or not share else f"{share:.1%}"


def _strips(title: str, strips: Sequence[Strip], bins: Bins) -> Strips:
    """Returns a chart of shares, as high as the highest of them needs."""
    peak = max(max(strip.values) for strip in strips)
    full = next(percent for percent in _HEIGHTS if peak * 100 <= percent * _WHOLE)
    scaled = [
        Strip(strip.label, [value * 100 // full for value in strip.values], strip.said)
        for strip in strips
    ]
    return Strips(title, bins.start, bins.end, full, "%", scaled)


_HEIGHTS: Final = (5, 10, 25, 50, 100)
"""Full heights of charts in percent."""


def _chart(title: str, strips: Sequence[tuple[int, Strip]], what: str, bins: Bins) -> list[Part]:
    """Returns a chart of the busiest strips and a note about all others."""
    kept, note = _busiest(strips, what)
    return [_strips(title, kept, bins), *note]


def _busiest(strips: Sequence[tuple[int, Strip]], what: str) -> tuple[list[Strip], list[Part]]:
    """Returns the strips with the largest figures, in their order, and a note about all others."""
    order = sorted(range(len(strips)), key=lambda place: (-strips[place][0], place))
    kept = sorted(order[:_MOST_STRIPS])
    note = left_out(len(kept), len(strips), what, "The busiest")
    return [strips[place][1] for place in kept], note


def link_flows(
    records: Iterable[Record], topology: Topology
) -> dict[str, list[tuple[int, int, int]]]:
    """Returns what flows through each link, in the machine's order: begin, end and bytes.

    A message is an even flow that reaches each link of its route one link latency after the link
    before, as in a trace.
    """
    latencies = {link.name: link.latency for link in topology.links}
    flows: dict[str, list[tuple[int, int, int]]] = {}
    for record in records:
        start, end = record.start, record.end
        if record.category != "send" or start == end:
            continue
        nbytes = int(record.args.get("bytes", 0))
        delay = 0
        for name in record.args.get("links", ()):
            flows.setdefault(name, []).append((start + delay, end + delay, nbytes))
            delay += latencies[name]
    return {name: flows[name] for name in latencies if name in flows}


def link_charts(
    records: Iterable[Record], topology: Topology, span: Interval, unkept: int = 0
) -> list[Part]:
    """Returns a chart of the links that carried something; nothing if none did.

    Args:
        records: Records of the run.
        span: The time of the chart, in picoseconds; longer if a message is on its way after it.
        unkept: Number of collectives without records of their messages.
    """
    flows = link_flows(records, topology)
    missing: list[Part] = []
    if unkept:
        text = f"Not counted are the messages of {unkept} collectives in which ranks stand for "
        missing.append(Note(f"{text}others: they are not kept."))
    if not flows:
        return missing
    last = max(end for flow in flows.values() for _, end, _ in flow)
    bins = Bins(span[0], max(span[1], last))
    lengths = bins.lengths()
    bandwidths = {link.name: link.bandwidth.per_second for link in topology.links}
    strips, everything, capacity = [], [0] * len(lengths), 0
    quiet: list[str] = []
    for name, flow in flows.items():
        sums = [0] * len(lengths)
        for start, end, nbytes in flow:
            bins.spread(sums, start, end, nbytes)
        everything = [one + other for one, other in zip(everything, sums, strict=True)]
        capacity += bandwidths[name]
        carried, strip = _link_strip(name, sums, bandwidths[name], bins)
        busy = carried * PS_PER_S // bandwidths[name]
        if busy * _QUIET < bins.span:
            quiet.append(name)
        else:
            strips.append((busy, strip))
    _, mean = _link_strip(f"mean of {len(flows)}", everything, capacity, bins)
    idle = len(topology.links) - len(flows)
    parts: list[Part] = [_strips("Links that carried something", [mean], bins)]
    each = _chart("Link by link", strips, "links", bins) if strips else []
    if quiet:
        named = ", ".join(quiet[:_MOST_QUIET]) + ", ..." * (len(quiet) > _MOST_QUIET)
        each.append(Note(f"Busy for less than 0.5 % of the time, {len(quiet)}: {named}."))
    parts += each if len(strips) <= _OPEN_STRIPS else [Fold("Link by link", each)]
    parts.append(
        Note(
            "100% is the bandwidth of the link for payload. "
            + (f"{idle} other links of the machine carried nothing." if idle and not unkept else "")
        )
    )
    return parts + missing


_QUIET: Final = 200
"""A link that is busy for less than this part of the time has no strip of its own."""

_MOST_QUIET: Final = 12
"""Names of such links that are given."""


def _link_strip(
    label: str, carried: Sequence[int], bandwidth: int, bins: Bins
) -> tuple[int, Strip]:
    rates = [
        _WHOLE * nbytes * PS_PER_S // (bandwidth * length)
        for nbytes, length in zip(carried, bins.lengths(), strict=True)
    ]
    total = sum(carried)
    mean = total * PS_PER_S / (bandwidth * bins.span)
    said = f"{format_bytes(total)}, {_said(mean, max(rates) / _WHOLE)}"
    return total, Strip(label, [min(_WHOLE, rate) for rate in rates], said)


def memory_charts(changes: Iterable[MemoryChange], topology: Topology, bins: Bins) -> list[Part]:
    """Returns a chart of the HBM in use on each device; nothing if no memory was used.

    Args:
        changes: Blocks that hosts asked for and gave back.
        bins: Bins of simulated time.
    """
    by_sip = {
        sip: [(change.time, change.nbytes) for change in group]
        for sip, group in groupby(
            sorted(changes, key=lambda change: (change.sip, change.time)),
            key=lambda change: change.sip,
        )
    }
    highest = {sip: bins.highest(steps) for sip, steps in by_sip.items()}
    full = max((max(levels) for levels in highest.values()), default=0)
    if full <= 0:
        return []
    strips = []
    for sip, levels in highest.items():
        capacity = topology.num_cubes * topology.machine.system.sip_of(sip).cube.hbm.capacity
        peak = max(levels)
        values = [_WHOLE * max(level, 0) // full for level in levels]
        said = f"peak {format_bytes(peak)} of {format_bytes(capacity)}"
        strips.append((peak, Strip(f"sip{sip}", values, said)))
    kept, note = _busiest(strips, "devices")
    each = [Strips("HBM in use", bins.start, bins.end, full, "B", kept), *note]
    fullest = max(strips, key=lambda strip: strip[0])[1]
    return [
        *(
            each
            if len(kept) <= _OPEN_STRIPS
            else [
                Strips("HBM in use, fullest device", bins.start, bins.end, full, "B", [fullest]),
                Fold("Each device", each),
            ]
        ),
        Note(
            "Blocks of tensors, as the host asks for them and gives them back: it runs ahead of "
            "its device, so times are those of the host. Each bin shows its highest moment."
        ),
    ]
