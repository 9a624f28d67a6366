"""Programs whose ranks would disagree if each had its own order of sets, as on hardware (R11)."""

import re
from collections.abc import Callable, Sequence

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ranks.exploring import ends_of
from kernbench.ranks.hash_seeds import Calls, HashSeedError, Trial, compare
from kernbench.ranks.schedules import Schedule
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

ORDERS = {1: ("bias", "weight"), 2: ("weight", "bias")}
"""By hash seed, the order of the set of both names."""

SIZES = {"bias": 4, "weight": 8}

Worker = Callable[[int, Sequence[str]], object]


def tried(seed: int, worker: Worker, nprocs: int = 2, *, data: bool = True) -> Trial:
    """Runs a worker, which is given the order of a set, and returns what it did."""
    calls, schedule = Calls(), Schedule()
    ends: tuple[str, ...] = ()
    with RuntimeContext(RunSpec(data=data), calls=calls, schedule=schedule) as ctx:
        try:
            ctx.multiprocessing.spawn(worker, args=(ORDERS[seed],), nprocs=nprocs)
        except Exception as error:
            ends = ends_of(error)
    return Trial(seed, calls.by_rank, schedule.data, ends)


def told(worker: Worker, nprocs: int = 2, *, data: bool = True) -> str:
    """Returns the report about a worker; empty if there is none."""
    first, second = (tried(seed, worker, nprocs, data=data) for seed in ORDERS)
    try:
        compare(first, second, "AGAIN")
    except HashSeedError as error:
        return re.sub(r"at \S+\.py:(\d+):\d+", "at LINE", str(error))
    return ""


def test_r11_ranks_that_iterate_over_a_set() -> None:
    def worker(rank: int, names: Sequence[str]) -> None:
        dist.init_process_group("nccl")
        for name in names:
            dist.all_reduce(torch.ones(SIZES[name], device="cuda"))

    line = 'at LINE: dist.all_reduce(torch.ones(SIZES[name], device="cuda"))'
    assert told(worker) == (
        "[R11] ranks 0 and 1 would not make the same calls on hardware, where each rank has its "
        "own hash seed\n"
        "  rank 0 with hash seed 1: all_reduce #1 of group WORLD: "
        f"all_reduce([4], torch.float32, sum), {line}\n"
        "  rank 1 with hash seed 2: all_reduce #1 of group WORLD: "
        f"all_reduce([8], torch.float32, sum), {line}\n"
        "  hint: sort what is iterated over, `for name in sorted(names)`, or take a list or a dict "
        "instead of a set; AGAIN runs the second one again"
    )
    assert told(worker, data=False) == told(worker)


def test_tensors_of_one_size_are_told_apart_by_their_values() -> None:
    def worker(rank: int, names: Sequence[str]) -> None:
        dist.init_process_group("nccl")
        for name in names:
            dist.all_reduce(torch.full((4,), float(SIZES[name]), device="cuda"))

    report = told(worker)
    assert "[R11] ranks 0 and 1 would give different things to the same call" in report
    assert len(set(re.findall("values ([0-9a-f]{12})", report))) == 2
    assert not told(worker, data=False), "without values they are alike"


def test_what_is_sorted_or_local_does_not_depend_on_the_seed() -> None:
    def worker(rank: int, names: Sequence[str]) -> None:
        dist.init_process_group("nccl")
        params = {name: torch.full((4,), 2.0, device="cuda") for name in names}
        for name in sorted(names):
            params[name].mul_(SIZES[name])
            dist.all_reduce(params[name])
            dist.broadcast(params[name], src=1)
            print(params[name].tolist())

    assert not told(worker)


@pytest.mark.parametrize("both", [False, True])
def test_one_rank_alone_may_do_what_it_likes(both: bool) -> None:
    """Every mixture of seeds is then as one of the runs; with two such ranks it is not."""

    def worker(rank: int, names: Sequence[str]) -> None:
        dist.init_process_group("nccl")
        sends = dist.isend if rank == 0 else dist.irecv
        mine = names if rank == 0 or both else sorted(names)
        batch = [
            dist.P2POp(sends, torch.ones(4, device="cuda"), 1 - rank, tag=SIZES[name])
            for name in mine
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()

    assert bool(told(worker)) == both


def test_groups_that_are_made_in_the_order_of_a_set() -> None:
    def worker(rank: int, names: Sequence[str]) -> None:
        dist.init_process_group("nccl")
        for name in names:
            dist.new_group([0, 1] if name == "bias" else [1, 2])
        dist.destroy_process_group()

    report = told(worker, nprocs=3)
    assert "rank 0 with hash seed 1: new_group #1 of the world: new_group([0, 1])" in report
    assert "rank 1 with hash seed 2: new_group #1 of the world: new_group([1, 2])" in report


def test_ranks_outside_of_a_group_are_not_blamed() -> None:
    def worker(rank: int, names: Sequence[str]) -> None:
        dist.init_process_group("nccl")
        pair = dist.new_group([1, 2])
        dist.barrier()
        if rank:
            for name in names:
                dist.all_reduce(torch.ones(SIZES[name], device="cuda"), group=pair)
        dist.destroy_process_group()

    assert told(worker, nprocs=3).startswith("[R11] ranks 1 and 2 would not make the same calls")


def test_a_rank_that_makes_fewer_calls_and_how_it_ends() -> None:
    def worker(rank: int, names: Sequence[str]) -> None:
        dist.init_process_group("nccl")
        if names[0] == "weight":
            raise ValueError("no bias")
        dist.all_reduce(torch.ones(4, device="cuda"))

    report = told(worker)
    assert "rank 1 with hash seed 2 makes no such call\n" in report
    assert "in the run with hash seed 2: rank 0 failed: ValueError: no bias, at LINE" in report


def test_a_result_that_depends_on_the_seed() -> None:
    def worker(rank: int, names: Sequence[str]) -> None:
        total = torch.zeros(1, device="cuda")
        for name in names:
            total = total * 2 + SIZES[name]
        assert total.item() > 0

    report = told(worker, nprocs=1)
    assert report.startswith("[R11] the result depends on the hash seed of Python\n")
    assert re.search("hash seed 1: hosts read data [0-9a-f]{12}, all ranks return\n", report)


def test_a_trial_goes_to_json_and_back() -> None:
    def worker(rank: int, names: Sequence[str]) -> None:
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(4, device="cuda"))

    trial = tried(1, worker)
    assert len(trial.calls[1]) == 1
    assert Trial.from_json(trial.to_json()) == trial
