"""LSTM, GRU and plain recurrent networks as one operation of cuDNN."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch

from kernbench.cuda_on_cpu.keys import with_autograd
from kernbench.cuda_on_cpu.table import SEEDS, implements

_ATEN: Final = torch.ops.aten
_MODES: Final = ("rnn_relu", "rnn_tanh", "lstm", "gru")
"""Kinds of networks, by the numbers of cuDNN's modes."""

GATES: Final = (1, 1, 4, 3)
"""Gates of a cell, by mode."""

Tensors = tuple[Any, ...]


class Call(NamedTuple):
    """The last arguments of `_cudnn_rnn`."""

    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: list[int]

    @property
    def directions(self) -> int:
        """How many ways each layer goes."""
        return 1 + self.bidirectional


def replacements(takes: Callable[[Any], bool]) -> Iterator[tuple[Any, str, Any]]:
    """Yields what is replaced while ranks run: the owner, the name, and what stands there.

    Args:
        takes: Says whether cuDNN takes the input of a network.
    """
    for mode, name in enumerate(_MODES):
        yield torch._VF, name, _network(getattr(torch._VF, name), mode, takes)


def _network(
    real: Callable[..., Tensors], mode: int, takes: Callable[[Any], bool]
) -> Callable[..., Tensors]:
    cells = _MODES[mode] == "lstm"

    def network(input: Any, *rest: Any) -> Tensors:
        """A recurrent network as it is on CUDA."""
        if not takes(input):
            return real(input, *rest)
        packed = isinstance(rest[0], torch.Tensor) and rest[0].dtype is torch.int64
        sizes = rest[0].tolist() if packed else []
        state, weights, biases, layers, dropout, train, both = rest[packed : packed + 7]
        batch_first = not packed and rest[7]
        hx, cx = state if cells else (state, None)
        hidden = state[-1].shape[2] if cells else state.shape[2]
        projects = hx.shape[2] if hx.shape[2] != hidden else 0
        each = (4 if biases else 2) + bool(projects)
        call = Call(mode, hidden, projects, layers, batch_first, dropout, train, both, sizes)
        out, hy, cy, *_ = _ATEN._cudnn_rnn(input, weights, each, None, hx, cx, *call, None)
        return (out, hy, cy) if cells else (out, hy)

    return network


def _run(input: Any, weights: Any, each: int, hx: Any, cx: Any, call: Call, seed: Any) -> Tensors:
    """Runs PyTorch's own network on the CPU; what is dropped follows from the seed."""
    run = getattr(_ATEN, _MODES[call.mode])
    state = hx if cx is None else [hx, cx]
    last = (each >= 4, call.num_layers, call.dropout, call.train, call.bidirectional)
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(int(seed[:8].view(torch.int64)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of oneDNN, for networks that it does not have
            if call.batch_sizes:
                sizes = torch.LongTensor(call.batch_sizes)
                out: Tensors = run.data(input, sizes, state, weights, *last)
            else:
                out = run.input(input, state, weights, *last, call.batch_first)
    finally:
        generator.set_state(before)
    return out


def _reserve(input: Any, out: Any, call: Call) -> Any:
    """Returns memory for what a gradient needs: the gates and the cell of each element."""
    cells = out.numel() * call.num_layers * (GATES[call.mode] + 1)
    kept = cells * input.element_size() if call.train else 0
    return input.new_empty((max(kept, 8),), dtype=torch.uint8)


@implements("_cudnn_rnn", "Meta")
def _forward_shapes(
    input: Any, weight: Any, stride: int, buffer: Any, hx: Any, cx: Any, *rest: Any
) -> Tensors:
    del weight, stride, buffer
    call = Call(*rest[:9])
    width = (call.proj_size or call.hidden_size) * call.directions
    out = input.new_empty((*input.shape[:-1], width))
    cy = hx.new_empty(0) if cx is None else _ATEN.empty_like(cx)
    return out, _ATEN.empty_like(hx), cy, _reserve(input, out, call), input.new_empty(0)


@implements("_cudnn_rnn")
def _forward(
    input: Any, weight: Any, stride: int, buffer: Any, hx: Any, cx: Any, *rest: Any
) -> Tensors:
    del buffer
    call = Call(*rest[:9])
    seed = _ATEN.zeros([8], dtype=torch.uint8)
    if call.train and call.dropout:
        seed.view(torch.int64).random_(0, SEEDS)
    out, hy, *cy = _run(input, weight, stride, hx, cx, call, seed)
    reserve = _reserve(input, out, call).zero_()
    reserve[:8] = seed
    return out, hy, cy[0] if cy else hx.new_empty(0), reserve, input.new_empty(0)


@implements("_cudnn_rnn_backward", "Meta")
def _backward_shapes(input: Any, weight: Any, stride: int, buffer: Any, hx: Any, *rest: Any) -> Any:
    del stride, buffer
    cx, mask = rest[0], rest[-1]
    given = (input, hx, cx)
    slopes = [
        _ATEN.empty_like(one) if asked and one is not None else None
        for one, asked in zip(given, mask, strict=False)
    ]
    return *slopes, [_ATEN.empty_like(one) for one in weight] if mask[3] else []


@implements("_cudnn_rnn_backward")
def _backward(
    input: Any, weight: Any, stride: int, buffer: Any, hx: Any, cx: Any, *rest: Any
) -> Any:
    del buffer
    _, *grads = rest[:4]
    call, reserve, mask = Call(*rest[4:13]), rest[-2], rest[-1]
    with torch.enable_grad(), with_autograd():
        first = [None if one is None else one.detach().requires_grad_() for one in (input, hx, cx)]
        weights = [one.detach().requires_grad_() for one in weight]
        found = _run(first[0], weights, stride, first[1], first[2], call, reserve)
        pairs = [(out, grad) for out, grad in zip(found, grads, strict=False) if grad is not None]
        wanted = [one for one in (*first, *weights) if one is not None]
        outs, slopes_of_outs = zip(*pairs, strict=True)
        slopes = iter(torch.autograd.grad(outs, wanted, slopes_of_outs, materialize_grads=True))
    of_first = [None if one is None else next(slopes) for one in first]
    kept = [slope if asked else None for slope, asked in zip(of_first, mask, strict=False)]
    return *kept, list(slopes) if mask[3] else []
