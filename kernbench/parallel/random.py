"""Random numbers of a model in shards: streams by name, some the same on all shards, some not.

A parameter or dropout mask that shards must agree on is drawn from the default generator, one of
which each shard has its own part inside `with get_rng_tracker().fork():`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import kernbench.torch as torch
from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.extend import RankLocal, current_rank, draw_from
from kernbench.parallel import parallel_state
from kernbench.parallel.held import find_worker

__all__ = [
    "DATA_PARALLEL",
    "EXPERT_PARALLEL",
    "MODEL_PARALLEL",
    "CudaRNGStatesTracker",
    "RngError",
    "RngTracker",
    "forked_rng",
    "get_all_rng_states",
    "get_cuda_rng_tracker",
    "get_data_parallel_rng_tracker_name",
    "get_expert_parallel_rng_tracker_name",
    "get_rng_tracker",
    "initialize_rng_tracker",
    "model_parallel_cuda_manual_seed",
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
    """The named streams of random numbers of one rank: the rank that makes it.

    Args:
        use_cudagraphable_rng: Must be False: graphs of device commands are not simulated.
        is_inference_rng_tracker: Must be False: see `initialize_rng_tracker`.

    Raises:
        UnsupportedError: For other values.
    """

    def __init__(
        self, use_cudagraphable_rng: bool = False, is_inference_rng_tracker: bool = False
    ) -> None:
        _refuse_kinds(False, is_inference_rng_tracker, use_cudagraphable_rng)
        self._rank = current_rank()
        self._streams: dict[str, torch.Generator] = {}
        self._initialized = False

    def is_initialized(self) -> bool:
        """Returns whether streams were added or set since the beginning or the last `reset`."""
        return self._initialized

    def reset(self) -> None:
        """Forgets all streams."""
        self._streams.clear()
        self._initialized = False

    def get_states(self) -> dict[str, torch.Tensor]:
        """Returns where each stream is, as bytes on the host, by name; does not wait."""
        return {name: stream.get_state() for name, stream in self._streams.items()}

    def set_states(self, states: Mapping[str, torch.Tensor]) -> None:
        """Lets the streams go on from states, and forgets those that have none.

        Args:
            states: From `get_states`, of this tracker or of another one.

        Raises:
            OperandError: If one is no state of a generator; then nothing is changed.
        """
        streams = {name: torch.Generator("cuda") for name in states}
        for name, stream in streams.items():
            stream.set_state(states[name])
        for name, known in self._streams.items():
            if name in streams:
                # A block may be drawing from it: it goes on with the same generator.
                known.set_state(states[name])
                streams[name] = known
        self._streams, self._initialized = streams, True

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
        self._initialized = True

    @contextmanager
    def fork(self, name: str = MODEL_PARALLEL) -> Iterator[None]:
        """Lets the block draw from a stream instead of the rank's default generator.

        The stream goes on where its last block ended, however that ended.

        Raises:
            RngError: If there is no such stream, or the tracker is not the calling rank's.
        """
        rank = find_worker("fork")
        if self._rank != rank:
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


CudaRNGStatesTracker = RngTracker
"""Megatron-Core's name."""

_TRACKER: Final = RankLocal("random streams", RngTracker)


def get_rng_tracker() -> RngTracker:
    """Returns the named streams of the calling rank.

    Raises:
        OutsideWorkerError: If no rank is running here.
    """
    find_worker("get_rng_tracker")
    return _TRACKER.get()


def _refuse_kinds(te: bool, inference: bool, cudagraphable: bool) -> None:
    for given, text, hint in (
        (te, "Transformer Engine's random streams are not simulated", "leave it out"),
        (
            inference,
            "random streams that are not tracked are not simulated",
            "leave it out: in a model without dropout no stream is drawn from",
        ),
        (cudagraphable, "graphs of device commands are not simulated", "leave it out"),
    ):
        if given:
            raise UnsupportedError(text, [site_fact(call_site())], hint=hint)


def initialize_rng_tracker(
    use_te_rng_tracker: bool = False,
    inference_rng_tracker: bool = False,
    use_cudagraphable_rng: bool = False,
    force_reset: bool = False,
) -> None:
    """Makes the calling rank's tracker, if there is none.

    Args:
        use_te_rng_tracker: Must be False: Transformer Engine is not simulated.
        inference_rng_tracker: Must be False: a tracker that ignores its streams is not simulated.
        use_cudagraphable_rng: Must be False: graphs of device commands are not simulated.
        force_reset: Whether the tracker that is there is forgotten.

    Raises:
        UnsupportedError: For what is not simulated.
        OutsideWorkerError: If no rank is running here.
    """
    find_worker("initialize_rng_tracker")
    _refuse_kinds(use_te_rng_tracker, inference_rng_tracker, use_cudagraphable_rng)
    if force_reset:
        _TRACKER.forget()
    _TRACKER.get()


def get_cuda_rng_tracker(
    use_te_rng_tracker: bool = False,
    inference_rng_tracker: bool = False,
    use_cudagraphable_rng: bool = False,
) -> RngTracker:
    """Returns the named streams of the calling rank, under Megatron-Core's name.

    Args:
        use_te_rng_tracker: See `initialize_rng_tracker`, as for the other two.
        inference_rng_tracker: Must be False.
        use_cudagraphable_rng: Must be False.

    Raises:
        UnsupportedError: For what is not simulated.
        OutsideWorkerError: If no rank is running here.
    """
    find_worker("get_cuda_rng_tracker")
    _refuse_kinds(use_te_rng_tracker, inference_rng_tracker, use_cudagraphable_rng)
    return _TRACKER.get()


def get_all_rng_states() -> dict[str, torch.Tensor]:
    """Returns `get_cuda_rng_tracker().get_states()`.

    Raises:
        OutsideWorkerError: If no rank is running here.
    """
    find_worker("get_all_rng_states")
    return _TRACKER.get().get_states()


def get_expert_parallel_rng_tracker_name() -> str:
    """Returns the name of the stream of experts."""
    return EXPERT_PARALLEL


def get_data_parallel_rng_tracker_name() -> str:
    """Returns the name of the stream that is the same for all shards of a layer."""
    return DATA_PARALLEL


RngStates = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]
"""States of the default generators of the host and of the device, and of the tracker's streams."""


def rng_states() -> RngStates:
    """Returns where everything stands that the calling rank draws from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(), _TRACKER.get().get_states()


@contextmanager
def forked_rng(states: RngStates) -> Iterator[None]:
    """Lets the block draw what was drawn from states on; after it all go on where they stood.

    Args:
        states: From `rng_states` of the calling rank.
    """
    tracker = _TRACKER.get()
    before, was = rng_states(), tracker.is_initialized()
    try:
        _go_to(states)
        yield
    finally:
        _go_to(before)
        tracker._initialized = was


def _go_to(states: RngStates) -> None:
    host, device, streams = states
    torch.set_rng_state(host)
    torch.cuda.set_rng_state(device)
    _TRACKER.get().set_states(streams)


def model_parallel_cuda_manual_seed(
    seed: int,
    te_rng_tracker: bool = False,
    inference_rng_tracker: bool = False,
    use_cudagraphable_rng: bool = False,
    tp_rank: int | None = None,
    ep_rank: int | None = None,
    etp_rank: int | None = None,
    force_reset_rng: bool = False,
) -> None:
    """Does what `model_parallel_manual_seed` does, with Megatron-Core's arguments.

    Args:
        seed: Of the model.
        te_rng_tracker: See `initialize_rng_tracker`, as for the next two.
        inference_rng_tracker: Must be False.
        use_cudagraphable_rng: Must be False.
        tp_rank: Which shard of layers; None: that of `parallel_state`, as for the next two.
        ep_rank: Which experts.
        etp_rank: Which shard of them.
        force_reset_rng: Whether the tracker is made anew, rather than to forget its streams.

    Raises:
        UnsupportedError: For what is not simulated.
        ParallelStateError: If a rank is left out that `parallel_state` does not know.
        OutsideWorkerError: If no rank is running here.
    """
    find_worker("model_parallel_cuda_manual_seed")
    _refuse_kinds(te_rng_tracker, inference_rng_tracker, use_cudagraphable_rng)
    places = _places(tp_rank, ep_rank, etp_rank)
    if force_reset_rng:
        _TRACKER.forget()
    _seed(seed, *places)


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
    _seed(seed, *_places(tp_rank, ep_rank, etp_rank))


def _places(tp_rank: int | None, ep_rank: int | None, etp_rank: int | None) -> tuple[int, int, int]:
    if tp_rank is None:
        tp_rank = parallel_state.get_tensor_model_parallel_rank()
    if ep_rank is None:
        ep_rank = parallel_state.get_expert_model_parallel_rank()
    if etp_rank is None:
        etp_rank = parallel_state.get_expert_tensor_parallel_rank()
    return tp_rank, ep_rank, etp_rank


def _seed(seed: int, tp_rank: int, ep_rank: int, etp_rank: int) -> None:
    tracker = _TRACKER.get()
    tracker.reset()
    torch.manual_seed(seed)
    tracker.add(DATA_PARALLEL, seed)
    tracker.add(MODEL_PARALLEL, seed + _MODEL_OFFSET + tp_rank)
    tracker.add(EXPERT_PARALLEL, seed + _EXPERT_OFFSET + _EXPERT_STRIDE * ep_rank + etp_rank)
