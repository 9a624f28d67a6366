"""Megatron-Core's experts: routers choose those that the run names, reports know the layers."""

import importlib
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from kernbench.bridge.base.here import HERE
from kernbench.distributed.exchanges import note_load
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.routing import Asked, Routing


def patches() -> Iterator[WhenImported]:
    """Returns what is replaced."""
    found = {"router": _of_router, "router_replay": _of_replay, "moe_layer": _of_layer}
    moe = "megatron.core.transformer.moe"
    return (WhenImported(f"{moe}.{name}", patches) for name, patches in found.items())


def _routing() -> Routing | None:
    return None if HERE.rank is None else HERE.rank.process.ctx.routing


def _number(layer: Any) -> int:
    """Returns the number of a layer, or of its router, from 0; Megatron-Core counts from 1."""
    return (getattr(layer, "layer_number", None) or 1) - 1


def _of_router(module: ModuleType) -> Iterator[Patch]:
    """Yields what lets routers replay, whether the program asks for it or not."""
    make = module.TopKRouter.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        if _routing() is not None:
            self.router_replay = self.router_replay or module.RouterReplay()
            self.router_replay.kernbench_router = self

    yield Patch(module.TopKRouter, "__init__", made)


def _of_replay(module: ModuleType) -> Iterator[Patch]:
    """Yields what replays the run's choices, unless the program replays its own."""
    parallel_state = importlib.import_module("megatron.core.parallel_state")
    real = module.RouterReplay.get_replay_topk

    def get_replay_topk(
        self: Any, scores: torch.Tensor, topk: int, groups: Any, group_topk: Any, compute: Any
    ) -> Any:
        routing, action = _routing(), self.router_replay_action
        if routing is None or action not in (None, module.RouterReplayAction.RECORD):
            return real(self, scores, topk, groups, group_topk, compute)
        compute(scores, topk, groups, group_topk)  # takes its time
        step = self.kernbench_step = getattr(self, "kernbench_step", -1) + 1
        layer, (tokens, experts) = _number(getattr(self, "kernbench_router", None)), scores.shape
        place = parallel_state.get_expert_tensor_and_model_parallel_rank()
        chosen = routing.without_gates(Asked(step, layer, place, tokens, experts, topk))
        indices = torch.as_tensor(chosen).to(scores.device)
        if action is not None:
            self.record_indices(indices)
        return scores.gather(1, indices), indices

    yield Patch(module.RouterReplay, "get_replay_topk", get_replay_topk)


def _of_layer(module: ModuleType) -> Iterator[Patch]:
    """Yields what names the parts of a layer, and notes what its experts get."""
    layers: Any = module.MoELayer
    for name in ("dispatch", "combine", "routed_experts_compute"):
        yield Patch(layers, name, _ranged(getattr(layers, name), name.split("_")[-1]))
    make = layers.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        sort, calls = self.token_dispatcher.dispatch_postprocess, itertools.count()

        def noted(*rows: Any) -> Any:
            x, by_expert, *_ = found = sort(*rows)
            if HERE.rank is not None and HERE.rank.data and by_expert.device.type == "cpu":
                note = _note(self, x, by_expert.tolist(), next(calls))
                note("forward")
                if x.requires_grad:
                    x.register_hook(lambda _: note("backward"))
            return found

        self.token_dispatcher.dispatch_postprocess = noted

    yield Patch(layers, "__init__", made)


def _ranged(real: Any, part: str) -> Any:
    def within(self: Any, *args: Any) -> Any:
        with torch.profiler.record_function(f"moe {_number(self)} {part}"):
            return real(self, *args)

    return within


def _note(layer: Any, x: torch.Tensor, by_expert: list[int], step: int) -> Callable[[str], None]:
    """Returns what notes the rows of a rank's experts, in a direction."""
    parallel_state = importlib.import_module("megatron.core.parallel_state")
    dispatcher, process = layer.token_dispatcher, HERE.rank.process  # type: ignore[union-attr]
    both = parallel_state.get_expert_tensor_and_model_parallel_group()
    ranks = torch.distributed.get_process_group_ranks(both)
    place, rows = parallel_state.get_expert_model_parallel_rank(), 0
    for splits in (getattr(dispatcher, f"{way}put_splits", None) for way in ("in", "out")):
        rows += 0 if splits is None else int(sum(splits) - splits[place])
    cut = 0 if layer.config.moe_expert_capacity_factor is None else None
    sent, where = rows * x.shape[-1] * x.element_size(), (_number(layer), step)
    return lambda way: note_load(process, *where, way, ranks, by_expert, cut, cut, sent)
