"""Collectives that meet on shared links: followed by a recording, they end as on the network."""

import random
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import caches
from kernbench.ccl.company import Companies, Company, Recording
from kernbench.des import EventLoop
from kernbench.hw.claims import Claim, Claims
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

RANKS = 8
NODES = tuple(
    f"system.sips.{key}"
    for key in (f"count={RANKS}", "network.node.size=2", "network.spine.count=1")
)
Step = Callable[[int, dist.ProcessGroup], None]


def exchanges(seed: int, *, outsider: bool = False, uneven: bool = True, less: int = 64) -> Step:
    """Two exchanges in a row after unequal work, then halves reduce; all meet on the spine.

    Args:
        seed: Of the work and the sizes.
        outsider: Whether a message from rank to rank is under way, too.
        uneven: Whether the sizes differ.
        less: How many times less the second exchange has.
    """
    pick = random.Random(seed)
    work = [pick.randrange(4) for _ in range(RANKS)]
    rows = [[pick.randrange(40 << 10) if uneven else 9999 for _ in range(RANKS)] for _ in work]

    def step(rank: int, half: dist.ProcessGroup) -> None:
        x = torch.empty(1 << 20, device="cuda")
        for _ in range(work[rank]):
            x.add_(1)
        message = []
        if outsider and rank in (3, 6):
            pass_on = dist.isend if rank == 3 else dist.irecv
            message.append(pass_on(torch.empty(1 << 18, device="cuda"), 9 - rank))
        for part in (1, less):
            sends = [row // part for row in rows[rank]]
            comes = [row[rank] // part for row in rows]
            out = torch.empty(sum(comes), device="cuda")
            dist.all_to_all_single(out, x[: sum(sends)], comes, sends)
        dist.all_reduce(x[: 1 << 14], group=half)
        for work_of_message in message:
            assert work_of_message is not None
            work_of_message.wait()

    return step


def times(steps: list[Step], *, shadow: bool) -> tuple[list[list[float]], int]:
    """Returns the times of steps by rank, and how often a recording was followed."""
    found: list[list[float]] = [[] for _ in range(RANKS)]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        half = [dist.new_group(range(which, RANKS, 2)) for which in range(2)][rank % 2]
        for step in steps:
            dist.barrier()
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step(rank, half)
            end.record()
            torch.cuda.synchronize()
            found[rank].append(begin.elapsed_time(end))
        dist.destroy_process_group()

    caches.clear()
    spec = RunSpec(topology="h200x8_x4_nodes", overrides=NODES, data=False, shadow=shadow)
    with RuntimeContext(spec) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
        return found, ctx.collectives.companies.followed


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_what_comes_again_ends_as_on_the_network(seed: int) -> None:
    pick = random.Random(seed)
    kinds = [
        exchanges(seed),
        exchanges(seed + 10),
        exchanges(seed, outsider=True),
        exchanges(seed, uneven=False),
        exchanges(seed, less=32),
    ]
    # Hosts come to the same skews after some steps; each change is a difference on the way.
    steps = [kind for _ in range(4) for kind in [pick.choice(kinds)] * pick.choice((1, 7))]
    known, followed = times(steps, shadow=False)
    anew, none = times(steps, shadow=True)
    assert known == anew
    assert followed > 0
    assert none == 0


def test_ranks_that_call_long_before_their_start_are_followed_too() -> None:
    """Hosts run ahead, so ends may be known before starts: a recording tells each who has come."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16).to("cuda"))
        for _ in range(2):
            model(torch.ones(4, 16)).sum().backward()
        dist.destroy_process_group()

    def ends(*, shadow: bool) -> tuple[int, int]:
        with RuntimeContext(RunSpec(shadow=shadow)) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=RANKS)
            return ctx.engine.loop.now, ctx.collectives.companies.followed

    caches.clear()
    (first, _), (again, followed) = ends(shadow=False), ends(shadow=False)
    caches.clear()
    assert ends(shadow=True) == (first, 0)
    assert first == again
    assert followed > 0


def test_one_that_a_message_has_met_before_follows_nothing() -> None:
    """Found by the search of schedules: the message is over when the reductions meet."""

    def worker(rank: int, again: bool) -> None:
        dist.init_process_group("nccl")
        near, far = ((other, dist.new_group([0, other])) for other in (1, 2))
        x = torch.zeros(2, device="cuda")
        if rank == 2:
            dist.send(x, 0)
        elif rank == 0:
            dist.recv(x, 2)
        for other, group in (far, near) if again else (near, far):
            if rank in (0, other):
                dist.all_reduce(x, group=group)
        if again and rank < 2:
            (dist.recv if rank else dist.send)(x, 1 - rank)
        if again:
            dist.all_reduce(x)
        dist.destroy_process_group()

    def ends(*, shadow: bool) -> int:
        caches.clear()
        with RuntimeContext(RunSpec(topology="sip8", data=False, shadow=shadow)) as ctx:
            for again in (False, True):
                ctx.multiprocessing.spawn(worker, args=(again,), nprocs=3)
            return ctx.engine.loop.now

    assert ends(shadow=False) == ends(shadow=True)


class Plan:
    """On no links: whoever is asked says who else is on them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.use = SimpleNamespace(links=())


class Lone:
    """A collective of one rank, for which the owner has the number of the collective."""

    def __init__(self, plan: Any, start: int) -> None:
        self.plan = plan
        self.starts = {plan.number: start}
        self.claim: Claim | None = cast(Claim, SimpleNamespace(alone=True, member=self))
        self.claim.company = None
        self.ends: list[int] = []

    def key(self, rank: int) -> tuple[int, int]:
        return rank, 0

    def meet(self, company: Company) -> None:
        assert self.claim is not None
        self.claim.company = company

    def follow(self) -> None:
        self.ends.clear()

    def settle(self, rank: int, end: int) -> None:
        self.ends.append(end)

    def release(self) -> None: ...


class Links:
    """Links on which all collectives meet; counts those that go over the network after all."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.repeated = 0

    def on(self, _: Iterable[int]) -> list[Claim]:
        return self.claims

    def share(self, _: Claim, *, begun: bool) -> None:
        assert begun
        self.repeated += 1


@pytest.mark.parametrize("newest", ["short", "long"])
@pytest.mark.parametrize("second", [True, False])
def test_of_recordings_that_begin_alike_the_one_that_fits_is_followed(
    newest: str, second: bool
) -> None:
    """At the beginning nobody knows whether more will come, or what else comes at that instant."""
    plans = [Plan(number) for number in range(3)]
    starts = {(0, 0): (0, 0, 0), (1, 1): (50, 1, 0), (2, 2): (50, 2, 0)}
    order = tuple((time, who) for who, (time, _, _) in starts.items())
    long = Recording(tuple(plans), starts, order, ((50, 0, 0, 90), (50, 1, 1, 70), (50, 2, 2, 80)))
    short = Recording((plans[0],), {(0, 0): (0, 0, 0)}, order[:1], ((60, 0, 0, 60),))
    kept = {(plans[0], 0): (short, long) if newest == "short" else (long, short)}
    loop, links = EventLoop(), Links()
    companies = Companies(loop, cast(Claims, links), cast(Any, kept), shadow=False)

    def come(number: int) -> Lone:
        member = Lone(plans[number], loop.now)
        links.claims += [member.claim] if member.claim else []
        companies.of(member)
        return member

    members = [come(0)]
    for number in (1, 2) if second else ():
        loop.at(50, loop.owner(number), lambda number=number: members.append(come(number)))
    loop.run()
    assert links.repeated == 0
    assert [member.ends for member in members] == ([[90], [70], [80]] if second else [[60]])
