"""Layers without weights against their formulas in numpy; `-m torch` compares all of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.torch import nn

Values = np.ndarray[Any, Any]

X = np.linspace(-4.0, 4.0, 24).reshape(4, 6)
"""Both sides of every corner, and none of them exactly."""

TARGET = np.linspace(0.05, 0.95, 24).reshape(4, 6)


def _sigmoid(x: Values) -> Values:
    shares: Values = 1 / (1 + np.exp(-x))
    return shares


def _softmax(x: Values) -> Values:
    powers = np.exp(x)
    shares: Values = powers / powers.sum(1, keepdims=True)
    return shares


LAYERS: list[tuple[nn.Module, Callable[[Values], Values], str]] = [
    (nn.Tanh(), np.tanh, "Tanh()"),
    (nn.Sigmoid(), _sigmoid, "Sigmoid()"),
    (nn.LogSigmoid(), lambda x: np.log(_sigmoid(x)), "LogSigmoid()"),
    (nn.Softsign(), lambda x: x / (1 + abs(x)), "Softsign()"),
    (nn.Softmax(dim=1), _softmax, "Softmax(dim=1)"),
    (nn.LogSoftmax(dim=1), lambda x: np.log(_softmax(x)), "LogSoftmax(dim=1)"),
    (nn.Softmin(dim=1), lambda x: _softmax(-x), "Softmin(dim=1)"),
    (nn.GLU(), lambda x: x[:, :3] * _sigmoid(x[:, 3:]), "GLU(dim=-1)"),
    (nn.LeakyReLU(0.1), lambda x: np.where(x > 0, x, 0.1 * x), "LeakyReLU(negative_slope=0.1)"),
    (nn.ELU(2.0), lambda x: np.where(x > 0, x, 2 * np.expm1(x)), "ELU(alpha=2.0)"),
    (
        nn.SELU(),
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        "SELU()",
    ),
    (nn.Hardtanh(-2.0, 1.0), lambda x: x.clip(-2, 1), "Hardtanh(min_val=-2.0, max_val=1.0)"),
    (nn.ReLU6(), lambda x: x.clip(0, 6), "ReLU6()"),
    (nn.Softplus(), lambda x: np.log1p(np.exp(x)), "Softplus(beta=1.0, threshold=20.0)"),
    (nn.Mish(), lambda x: x * np.tanh(np.log1p(np.exp(x))), "Mish()"),
    (nn.Hardswish(), lambda x: x * (x + 3).clip(0, 6) / 6, "Hardswish()"),
    (nn.Hardsigmoid(), lambda x: (x + 3).clip(0, 6) / 6, "Hardsigmoid()"),
    (nn.Flatten(0), lambda x: x.reshape(24), "Flatten(start_dim=0, end_dim=-1)"),
    (
        nn.Unflatten(1, (2, 3)),
        lambda x: x.reshape(4, 2, 3),
        "Unflatten(dim=1, unflattened_size=(2, 3))",
    ),
    (nn.ZeroPad2d(1), lambda x: np.pad(x, 1), "ZeroPad2d((1, 1, 1, 1))"),
]


@pytest.mark.parametrize(("layer", "formula", "text"), LAYERS, ids=lambda each: str(each)[:16])
def test_a_layer_is_its_formula(
    layer: nn.Module, formula: Callable[[Values], Values], text: str, device: str
) -> None:
    given = X[None] if isinstance(layer, nn.ZeroPad2d) else X
    want = formula(X)
    found = layer(torch.tensor(given, device=device)).cpu().numpy().reshape(want.shape)
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-14)
    assert repr(layer) == text


def _huber(x: Values, y: Values) -> Values:
    apart = abs(x - y)
    return np.where(apart < 1, apart**2 / 2, apart - 0.5)


LOSSES: list[tuple[nn.Module, Callable[[Values, Values], Values]]] = [
    (nn.MSELoss(reduction="sum"), lambda x, y: ((x - y) ** 2).sum()),
    (nn.L1Loss(), lambda x, y: abs(x - y).mean()),
    (nn.SmoothL1Loss(), lambda x, y: _huber(x, y).mean()),
    (nn.HuberLoss(), lambda x, y: _huber(x, y).mean()),
    (
        nn.BCEWithLogitsLoss(),
        lambda x, y: -(y * np.log(_sigmoid(x)) + (1 - y) * np.log(_sigmoid(-x))).mean(),
    ),
    (nn.KLDivLoss(reduction="sum"), lambda x, y: (y * (np.log(y) - x)).sum()),
]


@pytest.mark.parametrize(("loss", "formula"), LOSSES, ids=lambda each: str(each)[:16])
def test_a_loss_is_its_formula(
    loss: nn.Module, formula: Callable[[Values, Values], Values], device: str
) -> None:
    found = loss(torch.tensor(X, device=device), torch.tensor(TARGET, device=device))
    np.testing.assert_allclose(found.item(), formula(X, TARGET), rtol=1e-12)


def test_losses_of_shares_and_of_classes(device: str) -> None:
    shares, classes = _softmax(X), np.array([5, 0, 2, 3])
    of_shares = nn.BCELoss()(
        torch.tensor(shares, device=device), torch.tensor(TARGET, device=device)
    )
    want = -(TARGET * np.log(shares) + (1 - TARGET) * np.log(1 - shares)).mean()
    np.testing.assert_allclose(of_shares.item(), want, rtol=1e-12)
    target = torch.tensor(classes, device=device)
    picked = -np.log(shares)[np.arange(4), classes].mean()
    of_logs = nn.NLLLoss()(torch.tensor(np.log(shares), device=device), target)
    of_classes = nn.CrossEntropyLoss()(torch.tensor(X, device=device), target)
    np.testing.assert_allclose([of_logs.item(), of_classes.item()], [picked] * 2, rtol=1e-12)


def test_layers_of_two_tensors(device: str) -> None:
    x, y = torch.tensor(X, device=device), torch.tensor(TARGET, device=device)
    lengths = np.linalg.norm(X, axis=1) * np.linalg.norm(TARGET, axis=1)
    np.testing.assert_allclose(
        nn.CosineSimilarity()(x, y).cpu().numpy(), (X * TARGET).sum(1) / lengths, rtol=1e-12
    )
    np.testing.assert_allclose(
        nn.PairwiseDistance()(x, y).cpu().numpy(),
        np.linalg.norm(X - TARGET + 1e-6, axis=1),
        rtol=1e-12,
    )
