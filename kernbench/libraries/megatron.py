"""Megatron-Core's experts: routers choose those that the run names, reports know the layers.

PyTorch is that of Megatron-Core's modules.
"""

import importlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from kernbench.distributed.exchanges import note_load
from kernbench.errors import UnsupportedError
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.process.process import Process
from kernbench.routing import Asked, Routing, counts_of


class Rank(Protocol):
    """What is asked of a calling rank."""

    @property
    def process(self) -> Process:
        """Its process."""

    @property
    def data(self) -> bool:
        """Whether tensors hold values."""


Here = Callable[[], Rank | None]
"""Gives the calling rank; None where code of no rank calls."""


def patches(here: Here) -> Iterator[WhenImported]:
    """Returns what is replaced.

    Args:
        here: Asked at each call of what stands in place of Megatron-Core's.
    """
    known: dict[Process, Asked] = {}  # of ranks that count rows without numbers
    found: dict[str, Callable[[Here, ModuleType], Iterator[Patch]]] = {
        "router": _of_router,
        "router_replay": _of_replay,
        "moe_layer": partial(_of_layer, known),
        "token_dispatcher": partial(_of_dispatcher, known),
    }
    moe = "megatron.core.transformer.moe"
    return (WhenImported(f"{moe}.{name}", partial(of, here)) for name, of in found.items())


def _routing(here: Here) -> Routing | None:
    rank = here()
    return None if rank is None else rank.process.ctx.routing


def _number(layer: Any) -> int:
    """Returns the number of a layer, or of its router, from 0; Megatron-Core counts from 1."""
    return (getattr(layer, "layer_number", None) or 1) - 1


def _of_router(here: Here, module: ModuleType) -> Iterator[Patch]:
    """Yields what lets routers replay, whether the program asks for it or not."""
    make = module.TopKRouter.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        if _routing(here) is not None:
            self.router_replay = self.router_replay or module.RouterReplay()
            self.router_replay.kernbench_router = self

    yield Patch(module.TopKRouter, "__init__", made)


def _of_replay(here: Here, module: ModuleType) -> Iterator[Patch]:
    """Yields what replays the run's choices, unless the program replays its own."""
    parallel_state = importlib.import_module("megatron.core.parallel_state")
    real = module.RouterReplay.get_replay_topk

    def get_replay_topk(
        self: Any, scores: Any, topk: int, groups: Any, group_topk: Any, compute: Any
    ) -> Any:
        routing, action = _routing(here), self.router_replay_action
        if routing is None or action not in (None, module.RouterReplayAction.RECORD):
            return real(self, scores, topk, groups, group_topk, compute)
        compute(scores, topk, groups, group_topk)  # takes its time
        step = self.kernbench_step = getattr(self, "kernbench_step", -1) + 1
        layer, (tokens, experts) = _number(getattr(self, "kernbench_router", None)), scores.shape
        place = parallel_state.get_expert_tensor_and_model_parallel_rank()
        chosen = routing.without_gates(Asked(step, layer, place, tokens, experts, topk))
        indices = module.torch.as_tensor(chosen).to(scores.device)
        if action is not None:
            self.record_indices(indices)
        return scores.gather(1, indices), indices

    yield Patch(module.RouterReplay, "get_replay_topk", get_replay_topk)


def _of_dispatcher(known: dict[Process, Asked], here: Here, module: ModuleType) -> Iterator[Patch]:
    """Yields what gathers the rows of all experts, where they come from a routing alone."""
    real = module.gather_from_sequence_parallel_region

    def gather_from_sequence_parallel_region(x: Any, *args: Any, **options: Any) -> Any:
        found, rank, routing = real(x, *args, **options), here(), _routing(here)  # takes its time
        asked = None if rank is None else known.get(rank.process)
        if asked is None or routing is None or x.dim() != 1:
            return found
        counts = counts_of(routing, asked, len(found) // asked.experts)
        return module.torch.tensor(counts.reshape(-1)).to(found)

    yield Patch(
        module, "gather_from_sequence_parallel_region", gather_from_sequence_parallel_region
    )


def _counting(known: dict[Process, Asked], here: Here, layer: Any) -> None:
    """Lets the dispatcher of a layer know what a routing says, where tensors have no numbers."""
    dispatcher, config = layer.token_dispatcher, layer.config
    real = getattr(dispatcher, "preprocess", None)
    if real is None:
        return

    def preprocess(routing_map: Any) -> Any:
        rank, step = here(), getattr(layer.router.router_replay, "kernbench_step", None)
        if rank is None or rank.data or step is None or config.moe_pad_expert_input_to_capacity:
            return real(routing_map)
        if config.moe_expert_capacity_factor is not None:
            raise UnsupportedError(
                "moe_expert_capacity_factor without numbers, and without padding",
                hint="--data on, or moe_pad_expert_input_to_capacity",
            )
        sizes = *routing_map.shape, config.moe_router_topk
        known[rank.process] = Asked(step, _number(layer), 0, *sizes)
        try:
            return real(routing_map)
        finally:
            del known[rank.process]

    dispatcher.preprocess = preprocess


def _of_layer(known: dict[Process, Asked], here: Here, module: ModuleType) -> Iterator[Patch]:
    """Yields what names the parts of a layer, and notes what its experts get."""
    layers: Any = module.MoELayer
    for name in ("dispatch", "combine", "routed_experts_compute"):
        yield Patch(layers, name, _ranged(module, getattr(layers, name), name.split("_")[-1]))
    make = layers.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        _counting(known, here, self)
        sort, calls = self.token_dispatcher.dispatch_postprocess, itertools.count()

        def noted(*rows: Any) -> Any:
            x, by_expert, *_ = found = sort(*rows)
            rank = here()
            counted = "preprocess" in vars(self.token_dispatcher) and _routing(here) is not None
            told = rank is not None and (rank.data or counted)
            if rank is not None and told and by_expert.device.type == "cpu":
                ranks_of = module.torch.distributed.get_process_group_ranks
                note = _note(rank.process, ranks_of, self, x, by_expert.tolist(), next(calls))
                note("forward")
                if x.requires_grad:
                    x.register_hook(lambda _: note("backward"))
            return found

        self.token_dispatcher.dispatch_postprocess = noted

    yield Patch(layers, "__init__", made)


def _ranged(module: ModuleType, real: Any, part: str) -> Any:
    def within(self: Any, *args: Any) -> Any:
        with module.torch.profiler.record_function(f"moe {_number(self)} {part}"):
            return real(self, *args)

    return within


def _note(
    process: Process, ranks_of: Any, layer: Any, x: Any, by_expert: list[int], step: int
) -> Callable[[str], None]:
    """Returns what notes the rows of a rank's experts, in a direction."""
    parallel_state = importlib.import_module("megatron.core.parallel_state")
    dispatcher = layer.token_dispatcher
    ranks = ranks_of(parallel_state.get_expert_tensor_and_model_parallel_group())
    place, rows = parallel_state.get_expert_model_parallel_rank(), 0
    for splits in (getattr(dispatcher, f"{way}put_splits", None) for way in ("in", "out")):
        rows += 0 if splits is None else int(sum(splits) - splits[place])
    cut = 0 if layer.config.moe_expert_capacity_factor is None else None
    sent, where = rows * x.shape[-1] * x.element_size(), (_number(layer), step)
    return lambda way: note_load(process, *where, way, ranks, by_expert, cut, cut, sent)
