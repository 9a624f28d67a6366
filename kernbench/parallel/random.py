"""Random numbers of a model in shards: streams by name, some the same on all shards, some not.

A parameter or dropout mask that shards must agree on is drawn from the default generator, one of
which each shard has its own part inside `with get_rng_tracker().fork():`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import kernbench.torch as torch
from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.extend import RankLocal, draw_from
from kernbench.parallel import parallel_state
from kernbench.parallel.parallel_state import find_worker

__all__ = [
    "DATA_PARALLEL",
    "EXPERT_PARALLEL",
    "MODEL_PARALLEL",
    "RngError",
    "RngTracker",
    "get_rng_tracker",
    "model_parallel_manual_seed",
]

DATA_PARALLEL: Final = "data-parallel-rng"
MODEL_PARALLEL: Final = "model-parallel-rng"
EXPERT_PARALLEL: Final = "expert-parallel-rng"

# Megatron-Core's numbers; they keep the streams of one seed apart from each other.
_MODEL_OFFSET: Final = 2718
_EXPERT_OFFSET: Final = 1024
_EXPERT_STRIDE: Final = 100


class RngError(KernbenchError, RuntimeError):
    """A stream of random numbers does not exist, exists already, or is another rank's."""


class RngTracker:
    """The named streams of random numbers of one rank."""

    def __init__(self) -> None:
        self._streams: dict[str, torch.Generator] = {}

    def reset(self) -> None:
        """Forgets all streams."""
        self._streams.clear()

    def add(self, name: str, seed: int) -> None:
        """Starts a stream.

        Raises:
            RngError: If the name or the seed is used already; streams of one seed would repeat
                each other's numbers.
        """
        stream = torch.Generator("cuda").manual_seed(seed)
        for other, known in self._streams.items():
            if other == name:
                raise RngError(f"random stream {name!r} already exists", [site_fact(call_site())])
            if known.initial_seed() == stream.initial_seed():
                raise RngError(
                    f"seed {seed} of random stream {name!r} is already that of {other!r}",
                    [site_fact(call_site())],
                )
        self._streams[name] = stream

    @contextmanager
    def fork(self, name: str = MODEL_PARALLEL) -> Iterator[None]:
        """Lets the block draw from a stream instead of the rank's default generator.

        The stream goes on where its last block ended, however that ended.

        Raises:
            RngError: If there is no such stream, or the tracker is not the calling rank's.
        """
        rank = find_worker("fork")
        if _TRACKER.get() is not self:
            raise RngError(
                f"rank {rank} draws from the random streams of another rank",
                [site_fact(call_site())],
                hint="call get_rng_tracker() in the worker that draws",
            )
        stream = self._streams.get(name)
        if stream is None:
            known = ", ".join(map(repr, self._streams)) or "none"
            raise RngError(
                f"random stream {name!r} does not exist",
                [site_fact(call_site()), f"there are {known}"],
                hint="call model_parallel_manual_seed() first",
            )
        with draw_from(stream):
            yield


_TRACKER: Final = RankLocal("random streams", RngTracker)


def get_rng_tracker() -> RngTracker:
    """Returns the named streams of the calling rank.

    Raises:
        OutsideWorkerError: If no rank is running here.
    """
    find_worker("get_rng_tracker")
    return _TRACKER.get()


def model_parallel_manual_seed(
    seed: int,
    tp_rank: int | None = None,
    ep_rank: int | None = None,
    etp_rank: int | None = None,
) -> None:
    """Seeds the default generator and starts the three streams of the calling rank anew.

    The default generator and `DATA_PARALLEL` are the same for all shards of a layer,
    `MODEL_PARALLEL` is another for each, and `EXPERT_PARALLEL` another for each shard of experts.

    Args:
        seed: Of the model.
        tp_rank: Which shard of layers; None: that of `parallel_state`, as for the other two.
        ep_rank: Which experts.
        etp_rank: Which shard of them.

    Raises:
        ParallelStateError: If a rank is left out that `parallel_state` does not know.
        OutsideWorkerError: If no rank is running here.
    """
    find_worker("model_parallel_manual_seed")
    tracker = get_rng_tracker()
    if tp_rank is None:
        tp_rank = parallel_state.get_tensor_model_parallel_rank()
    if ep_rank is None:
        ep_rank = parallel_state.get_expert_model_parallel_rank()
    if etp_rank is None:
        etp_rank = parallel_state.get_expert_tensor_parallel_rank()
    tracker.reset()
    torch.manual_seed(seed)
    tracker.add(DATA_PARALLEL, seed)
    tracker.add(MODEL_PARALLEL, seed + _MODEL_OFFSET + tp_rank)
    tracker.add(EXPERT_PARALLEL, seed + _EXPERT_OFFSET + _EXPERT_STRIDE * ep_rank + etp_rank)
