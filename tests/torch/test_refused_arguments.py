"""What PyTorch takes and is not simulated is refused by name, at the user's line."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.errors import UnsupportedError
from kernbench.testing import Kernbench
from kernbench.torch import nn, optim


def _x() -> Any:
    return torch.ones(2, 2)


def _p() -> Any:
    return [nn.Parameter(torch.ones(2))]


def _ids() -> Any:
    return torch.zeros(2, dtype=torch.int64)


WRONG: Any = 1
"""Stands for a value of an option whose only type is None."""

REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("Embedding(max_norm=", lambda: nn.Embedding(4, 2, 0, WRONG)),
    ("Embedding(norm_type=", lambda: nn.Embedding(4, 2, norm_type=1.0)),
    ("Embedding(scale_grad_by_freq=", lambda: nn.Embedding(4, 2, scale_grad_by_freq=True)),
    ("Embedding(sparse=", lambda: nn.Embedding(4, 2, sparse=True)),
    ("Embedding(_weight=", lambda: nn.Embedding(4, 2, _weight=WRONG)),
    ("Embedding(_freeze=", lambda: nn.Embedding(4, 2, _freeze=True)),
    ("embedding(max_norm=", lambda: F.embedding(_ids(), _x(), None, WRONG)),
    ("embedding(sparse=", lambda: F.embedding(_ids(), _x(), sparse=True)),
    ("CrossEntropyLoss(size_average=", lambda: nn.CrossEntropyLoss(None, WRONG)),
    ("CrossEntropyLoss(reduce=", lambda: nn.CrossEntropyLoss(reduce=WRONG)),
    ("MSELoss(size_average=", lambda: nn.MSELoss(WRONG)),
    ("cross_entropy(size_average=", lambda: F.cross_entropy(_x(), _ids(), None, WRONG)),
    ("cross_entropy(reduce=", lambda: F.cross_entropy(_x(), _ids(), reduce=WRONG)),
    ("nll_loss(reduce=", lambda: F.nll_loss(_x(), _ids(), reduce=WRONG)),
    ("mse_loss(size_average=", lambda: F.mse_loss(_x(), _x(), WRONG)),
    ("mse_loss(weight=", lambda: F.mse_loss(_x(), _x(), weight=WRONG)),
    ("SiLU(inplace=", lambda: nn.SiLU(True)),
    ("silu(inplace=", lambda: F.silu(_x(), True)),
    ("SGD(foreach=", lambda: optim.SGD(_p(), foreach=True)),
    ("SGD(differentiable=", lambda: optim.SGD(_p(), differentiable=True)),
    ("Adam(foreach=", lambda: optim.Adam(_p(), foreach=False)),
    ("Adam(capturable=", lambda: optim.Adam(_p(), capturable=True)),
    ("AdamW(differentiable=", lambda: optim.AdamW(_p(), differentiable=True)),
    ("AdamW(amsgrad=", lambda: optim.AdamW(_p(), amsgrad=True)),
    ("clip_grad_norm_(foreach=", lambda: nn.utils.clip_grad_norm_(_p(), 1.0, foreach=False)),
    ("get_total_norm(foreach=", lambda: nn.utils.get_total_norm(_p(), foreach=False)),
    (
        "clip_grads_with_norm_(foreach=",
        lambda: nn.utils.clip_grads_with_norm_(_p(), 1.0, _x(), foreach=False),
    ),
    ("grad(only_inputs=", lambda: torch.autograd.grad(_x(), _x(), None, None, False, False)),
    ("grad(is_grads_batched=", lambda: torch.autograd.grad(_x(), _x(), is_grads_batched=True)),
    ("backward(grad_variables=", lambda: torch.autograd.backward(_x(), grad_variables=WRONG)),
    ("gradcheck(nondet_tol=", lambda: torch.autograd.gradcheck(_x, _x(), nondet_tol=0.1)),
    ("gradcheck(fast_mode=", lambda: torch.autograd.gradcheck(_x, _x(), fast_mode=True)),
    (
        "gradcheck(check_backward_ad=",
        lambda: torch.autograd.gradcheck(_x, _x(), check_backward_ad=False),
    ),
    ("Event(external=", lambda: torch.cuda.Event(external=True)),
    (
        "assert_close(allow_subclasses=",
        lambda: torch.testing.assert_close(1, 1, allow_subclasses=False),
    ),
    ("unique(dim=", lambda: torch.unique(_x(), dim=0)),
    ("norm(out=", lambda: torch.norm(_x(), 2, None, False, WRONG)),
    ("tensordot(out=", lambda: torch.tensordot(_x(), _x(), 1, WRONG)),
    ("gather(sparse_grad=", lambda: torch.gather(_x(), 0, _ids(), sparse_grad=True)),
    ("scatter_(reduce=", lambda: _x().scatter_(0, _ids(), _x(), reduce="add")),
    ("pin_memory(device=", lambda: _x().pin_memory("cuda")),
    ("is_pinned(device=", lambda: _x().is_pinned("cuda")),
    (
        "DistributedDataParallel(bucket_cap_mb_list=",
        lambda: nn.parallel.DistributedDataParallel(nn.Linear(1, 1), bucket_cap_mb_list=[1]),
    ),
    (
        "DistributedDataParallel(batched_grad_copy=",
        lambda: nn.parallel.DistributedDataParallel(nn.Linear(1, 1), batched_grad_copy=True),
    ),
]


@pytest.mark.parametrize(("name", "call"), REFUSED, ids=[name for name, _ in REFUSED])
def test_it_is_refused_by_name(kernbench: Kernbench, name: str, call: Callable[[], object]) -> None:
    with kernbench.context(), pytest.raises(UnsupportedError) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(name)
    first = inspect.getsourcelines(call)[1]
    lines = inspect.getsource(call).count("\n")
    assert any(f"{__file__}:{line}" in text for line in range(first, first + lines))
