"""Max-min fair flows by brute force: all solved again at every start and end, in fractions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Flow:
    """A flow: the ports that it passes, its cap in bytes a second, its size, its start."""

    ports: tuple[int, ...]
    cap: int
    size: int
    start: int


def fair_rates(capacity: Mapping[int, int], flows: Mapping[int, Flow]) -> dict[int, Fraction]:
    """Bytes a second of each flow: all rise together until a port or a cap stops them."""
    rates = dict.fromkeys(flows, Fraction(0))
    rising = set(flows)
    while rising:
        steps = [flows[n].cap - rates[n] for n in rising]
        for port, total in capacity.items():
            here = [n for n in rising if port in flows[n].ports]
            used = sum((rates[n] for n in flows if port in flows[n].ports), Fraction(0))
            if here:
                steps.append((total - used) / len(here))
        step = min(steps)
        for n in rising:
            rates[n] += step
        full = {
            port
            for port, total in capacity.items()
            if sum(rates[n] for n in flows if port in flows[n].ports) == total
        }
        rising = {n for n in rising if rates[n] < flows[n].cap and not full & {*flows[n].ports}}
    return rates


def ends(capacity: Mapping[int, int], flows: Sequence[Flow]) -> list[int]:
    """When each flow ends, in picoseconds; an end is rounded up and seen at that moment."""
    left = [Fraction(flow.size) for flow in flows]
    done: dict[int, int] = {}
    now = min(flow.start for flow in flows)
    while len(done) < len(flows):
        running = {n: f for n, f in enumerate(flows) if n not in done and f.start <= now}
        for n in running:
            if left[n] <= 0:
                done[n] = now
        running = {n: f for n, f in running.items() if n not in done}
        rates = fair_rates(capacity, running)
        moments = [now + -(-left[n] * 10**12 // rates[n]) for n in running]
        moments += [flow.start for flow in flows if flow.start > now]
        if not moments:
            break
        then = min(moments)
        for n in running:
            left[n] -= rates[n] * (then - now) / 10**12
        now = then
    return [done[n] for n in range(len(flows))]
