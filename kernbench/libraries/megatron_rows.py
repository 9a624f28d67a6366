"""Rows that Megatron-Core's dispatchers count: where tensors have no numbers, a routing says them.

PyTorch is that of Megatron-Core's modules.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from kernbench.errors import NoDataError, UnsupportedError, call_site, site_fact
from kernbench.isolation.replaced import Patch
from kernbench.libraries.here import Here, routing_of
from kernbench.process.process import Process
from kernbench.routing import Asked, Routing, counts_of

Array = np.ndarray[Any, Any]

Known = dict[Process, Array]
"""Rows from each rank for each expert, `[ranks, experts]`, by the rank that counts them."""

_WAY_OUT = (
    "--data fake --routing NAME|FILE says what tokens choose (balanced, W0 to W7, zipf:S), "
    "--data on computes it"
)


def number_of(layer: Any) -> int:
    """Returns the number of a layer, or of its router, from 0; Megatron-Core counts from 1."""
    return (getattr(layer, "layer_number", None) or 1) - 1


def of_dispatcher(known: Known, here: Here, module: Any) -> Iterator[Patch]:
    """Yields what gathers the rows of all experts, where they come from a routing alone."""
    real = module.gather_from_sequence_parallel_region

    def gather_from_sequence_parallel_region(x: Any, *args: Any, **options: Any) -> Any:
        found, rank = real(x, *args, **options), here()  # takes its time
        counts = None if rank is None else known.get(rank.process)
        if rank is not None and counts is not None and x.dim() == 1:
            _keep(module.torch, rank.numbers, found, counts)
        return found

    yield Patch(
        module, "gather_from_sequence_parallel_region", gather_from_sequence_parallel_region
    )


def count(known: Known, here: Here, module: Any, layer: Any) -> None:
    """Lets the dispatcher of a layer know what a routing says, where tensors have no numbers.

    Args:
        known: What `of_dispatcher` looks at.
        here: Gives the calling rank.
        module: Megatron-Core's of the layer.
        layer: One of `MoELayer`, whose dispatcher counts rows from now on.
    """
    dispatcher, config, torch = layer.token_dispatcher, layer.config, module.torch
    all_to_all = isinstance(dispatcher, module.MoEAlltoAllTokenDispatcher)
    if not all_to_all and not isinstance(dispatcher, module.MoEAllGatherTokenDispatcher):
        return
    if all_to_all and config.moe_pad_expert_input_to_capacity:
        return  # it reads nothing
    parallel_state = importlib.import_module("megatron.core.parallel_state")
    first, last = dispatcher.local_expert_indices[0], dispatcher.local_expert_indices[-1] + 1
    before, after = dispatcher.dispatch_preprocess, dispatcher.dispatch_postprocess
    counts: Array | None = None

    def dispatch_preprocess(x: Any, routing_map: Any, *more: Any) -> Any:
        nonlocal counts
        rank = here()
        counts = None
        if rank is not None and not rank.data:
            counts = _said(routing_of(here) if rank.fake else None, layer, len(routing_map))
        if rank is None or counts is None or not all_to_all:
            return before(x, routing_map, *more)
        place = parallel_state.get_expert_tensor_and_model_parallel_rank()
        known[rank.process] = counts
        seen, rank.numbers = rank.numbers, _Seen(torch, rank.numbers, counts[place])
        try:
            return before(x, routing_map, *more)
        finally:
            rank.numbers = seen
            del known[rank.process]

    def preprocess(routing_map: Any) -> Any:
        found, rank = prepared(routing_map), here()
        if rank is not None and counts is not None:
            mine = counts[parallel_state.get_expert_tensor_and_model_parallel_rank()]
            splits = dispatcher.input_splits
            if splits is None:
                _keep(torch, rank.numbers, found, mine)
            else:
                _keep(torch, rank.numbers, splits, mine.reshape(len(splits), -1).sum(1))
            if isinstance(dispatcher.num_out_tokens, torch.Tensor):
                _keep(torch, rank.numbers, dispatcher.num_out_tokens, mine.sum())
        return found

    def dispatch_postprocess(*rows: Any) -> Any:
        rank = here()
        if rank is None or counts is None or all_to_all:
            return after(*rows)
        seen = rank.numbers
        rank.numbers = _Seen(torch, seen, counts[:, first:last].sum(0))
        try:
            return after(*rows)
        finally:
            rank.numbers = seen

    dispatcher.dispatch_preprocess = dispatch_preprocess
    dispatcher.dispatch_postprocess = dispatch_postprocess
    if all_to_all:
        prepared, dispatcher.preprocess = dispatcher.preprocess, preprocess


def _said(routing: Routing | None, layer: Any, tokens: int) -> Array | None:
    """Returns rows from each rank for each expert; None where the program replays its choices.

    Args:
        routing: Who says them; None: nobody.
        layer: The layer that dispatches.
        tokens: Of the calling rank.

    Raises:
        NoDataError: If nobody says them.
        UnsupportedError: If rows are added that no routing names.
    """
    config, replay = layer.config, layer.router.router_replay
    action = getattr(replay, "router_replay_action", None)
    if action is not None and action.name != "RECORD":
        return None
    if routing is None:
        raise NoDataError(
            f"{type(layer.token_dispatcher).__name__} of layer {number_of(layer)} reads how many "
            "rows each expert gets, and there are no numbers",
            [site_fact(call_site())],
            hint=_WAY_OUT,
        )
    if config.moe_router_padding_for_quantization:
        raise UnsupportedError("moe_router_padding_for_quantization without numbers")
    ranks = config.expert_model_parallel_size * (config.expert_tensor_parallel_size or 1)
    experts, topk = config.num_moe_experts, config.moe_router_topk
    asked = Asked(replay.kernbench_step, number_of(layer), 0, tokens, experts, topk)
    found = counts_of(routing, asked, ranks)
    if config.moe_expert_capacity_factor is None:
        return found
    utils = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    choices, factor = found.sum(1), config.moe_expert_capacity_factor
    most = [utils.get_capacity(int(each), experts, factor) for each in choices]
    taken: Array = np.minimum(found, np.array(most)[:, None])
    return taken


def _keep(torch: Any, numbers: Any, tensor: Any, values: Array) -> None:
    numbers.keep(tensor, lambda: torch.as_tensor(np.ascontiguousarray(values)).view(tensor.shape))


class _Seen:
    """Numbers that a dispatcher reads: those that are known, and how many rows there are.

    Args:
        torch: PyTorch.
        numbers: Those that are known.
        by_expert: Rows of each expert of the map that the dispatcher selects rows by.
    """

    def __init__(self, torch: Any, numbers: Any, by_expert: Array) -> None:
        self._torch = torch
        self._numbers = numbers
        self._by_expert = by_expert

    def __getattr__(self, name: str) -> Any:
        return getattr(self._numbers, name)

    def of(self, tensor: Any) -> Any:
        """Returns numbers of a tensor; of a map, as many choices as there are, somewhere."""
        torch, found = self._torch, self._numbers.of(tensor)
        if found is not None:
            return found
        if tensor.dtype is torch.bool:
            chosen = torch.zeros(tensor.numel(), dtype=torch.bool, device="cpu")
            chosen[: int(self._by_expert.sum())] = True
            return chosen.view(tensor.shape)
        if tensor.dtype is torch.int64 and tensor.shape == self._by_expert.shape:
            return torch.tensor(self._by_expert, device="cpu")
        return torch.zeros((), dtype=tensor.dtype, device="cpu").expand(tensor.shape)
