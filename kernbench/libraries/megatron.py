"""Megatron-Core's experts: routers choose those that the run names, reports know the layers.

PyTorch is that of Megatron-Core's modules.
"""

import importlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from kernbench.distributed.exchanges import note_load
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.libraries import megatron_rows
from kernbench.libraries.here import Here, routing_of
from kernbench.libraries.megatron_rows import Known, number_of
from kernbench.process.process import Process
from kernbench.routing import Asked


def patches(here: Here) -> Iterator[WhenImported]:
    """Returns what is replaced.

    Args:
        here: Asked at each call of what stands in place of Megatron-Core's.
    """
    known: Known = {}
    found: dict[str, Callable[[Here, ModuleType], Iterator[Patch]]] = {
        "router": _of_router,
        "router_replay": _of_replay,
        "moe_layer": partial(_of_layer, known),
        "token_dispatcher": partial(megatron_rows.of_dispatcher, known),
    }
    moe = "megatron.core.transformer.moe"
    return (WhenImported(f"{moe}.{name}", partial(of, here)) for name, of in found.items())


def _of_router(here: Here, module: ModuleType) -> Iterator[Patch]:
    """Yields what lets routers replay, whether the program asks for it or not."""
    make = module.TopKRouter.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        if routing_of(here) is not None:
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
        routing, action = routing_of(here), self.router_replay_action
        if routing is None or action not in (None, module.RouterReplayAction.RECORD):
            return real(self, scores, topk, groups, group_topk, compute)
        compute(scores, topk, groups, group_topk)  # takes its time
        step = self.kernbench_step = getattr(self, "kernbench_step", -1) + 1
        layer, (tokens, experts) = number_of(getattr(self, "kernbench_router", None)), scores.shape
        place = parallel_state.get_expert_tensor_and_model_parallel_rank()
        chosen = routing.without_gates(Asked(step, layer, place, tokens, experts, topk))
        indices = module.torch.as_tensor(chosen).to(scores.device)
        if action is not None:
            self.record_indices(indices)
        return scores.gather(1, indices), indices

    yield Patch(module.RouterReplay, "get_replay_topk", get_replay_topk)


def _of_layer(known: Known, here: Here, module: ModuleType) -> Iterator[Patch]:
    """Yields what names the parts of a layer, and notes what its experts get."""
    layers: Any = module.MoELayer
    for name in ("dispatch", "combine", "routed_experts_compute"):
        yield Patch(layers, name, _ranged(module, getattr(layers, name), name.split("_")[-1]))
    make = layers.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        megatron_rows.count(known, here, module, self)
        sort, calls = self.token_dispatcher.dispatch_postprocess, itertools.count()

        def noted(*rows: Any) -> Any:
            x, by_expert, *_ = found = sort(*rows)
            rank = here()
            told = rank is not None and (rank.data or routing_of(here) is not None)
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
        with module.torch.profiler.record_function(f"moe {number_of(self)} {part}"):
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
    sent, where = rows * x.shape[-1] * x.element_size(), (number_of(layer), step)
    return lambda way: note_load(process, *where, way, ranks, by_expert, cut, cut, sent)
