"""Making the groups of a layout: what a rank costs, however many ranks there are."""

from collections.abc import Callable

import _measure

from kernbench import caches
from kernbench.parallel import parallel_state
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import distributed as dist
from kernbench.torch.distributed.device_mesh import init_device_mesh

SIZE = 8
WORLDS = (64, 256, 512)
REPEATS = 3
LIMIT_S = 0.3
MOST_GROWTH = 1.5  # the cost of a rank among 512 over that among 64


def model_parallel() -> None:
    parallel_state.initialize_model_parallel(SIZE)


def subgroups() -> None:
    dist.new_subgroups(SIZE)


def mesh() -> None:
    init_device_mesh("cuda", (dist.get_world_size() // SIZE, SIZE))


def seconds(make: Callable[[], None], ranks: int) -> float:
    """Returns the seconds of a spawn whose ranks make groups and destroy them."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        make()
        dist.destroy_process_group()

    def run() -> None:
        caches.clear()
        ctx.multiprocessing.spawn(worker, nprocs=ranks)

    overrides = (f"system.sips.count={ranks}",)
    with RuntimeContext(RunSpec(topology="ring1024", overrides=overrides, data=False)) as ctx:
        return min(_measure.seconds(run) for _ in range(REPEATS))


def main() -> None:
    rows: list[list[object]] = []
    for make in (model_parallel, subgroups, mesh):
        times = [seconds(make, ranks) for ranks in WORLDS]
        each = [time / ranks * 1e3 for time, ranks in zip(times, WORLDS, strict=True)]
        rows.append(
            [
                make.__name__,
                *[f"{time:.2f}" for time in times],
                f"{each[-1] / each[0]:.1f}x",
                _measure.verdict(each[-1] / each[0], MOST_GROWTH, at_least=False),
                _measure.verdict(times[-1], LIMIT_S, at_least=False),
            ]
        )
    header = ["", *[f"{ranks} ranks, s" for ranks in WORLDS], "a rank", "linear", "seconds"]
    _measure.show(f"Groups of {SIZE}", header, rows)


if __name__ == "__main__":
    main()
