"""Activations, norms, padding and containers, by numpy and by hand; drawn calls compare PyTorch."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.errors import OperandError, OptionError, UnsupportedError
from kernbench.testing import Kernbench
from kernbench.torch import nn

ACTIVATIONS: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
    "elu": (F.elu, lambda x: np.where(x > 0, x, np.exp(x) - 1)),
    "selu": (
        F.selu,
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1)),
    ),
    "softplus": (F.softplus, lambda x: np.log(1 + np.exp(x))),
    "hardtanh": (F.hardtanh, lambda x: np.clip(x, -1, 1)),
    "relu6": (F.relu6, lambda x: np.clip(x, 0, 6)),
    "logsigmoid": (F.logsigmoid, lambda x: -np.log(1 + np.exp(-x))),
    "mish": (F.mish, lambda x: x * np.tanh(np.log(1 + np.exp(x)))),
    "hardswish": (F.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "hardsigmoid": (F.hardsigmoid, lambda x: np.clip(x + 3, 0, 6) / 6),
    "softsign": (F.softsign, lambda x: x / (1 + abs(x))),
    "leaky_relu_": (lambda x: F.leaky_relu(x * 1, inplace=True), lambda x: np.maximum(x, 0.01 * x)),
    "elu_": (lambda x: F.elu(x * 1, 0.5, True), lambda x: np.where(x > 0, x, (np.exp(x) - 1) / 2)),
    "relu6_": (lambda x: F.relu6(x * 1, True), lambda x: np.clip(x, 0, 6)),
}
POINTS: Final = np.array([-4.2, -2.5, -0.7, 0.3, 0.9, 2.2, 4.1, 7.3])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_and_its_slope(kernbench: Kernbench, name: str) -> None:
    ours, law = ACTIVATIONS[name]
    with kernbench.context():
        x = torch.tensor(POINTS, requires_grad=True)
        y = ours(x)
        y.sum().backward()
        assert y.tolist() == pytest.approx(law(POINTS).tolist())
        step = 1e-6
        slope = (law(POINTS + step) - law(POINTS - step)) / (2 * step)
        assert x.grad is not None
        assert x.grad.tolist() == pytest.approx(slope.tolist(), rel=1e-5, abs=1e-8)


def test_what_has_no_gradient_in_place_is_refused(kernbench: Kernbench) -> None:
    with kernbench.context():
        with pytest.raises(OptionError, match="negative slope below 0"):
            F.leaky_relu(torch.ones(2), -1.0, True)
        for function in (F.mish, F.hardswish, F.hardsigmoid):
            with pytest.raises(UnsupportedError, match="inplace"):
                function(torch.ones(2), True)


def test_an_activation_is_one_kernel(kernbench: Kernbench) -> None:
    ctx = kernbench.context(record="full")
    with ctx:
        x = torch.ones(8, device="cuda", requires_grad=True)
        before = len(ctx.engine.op_log.records)
        F.softplus(x).sum().backward()
        names = [each.name for each in ctx.engine.op_log.records[before:]]
    assert [name for name in names if "softplus" in name] == [
        "aten::softplus",
        "aten::softplus_backward",
    ]


def test_batch_norm_normalises_and_keeps_statistics(kernbench: Kernbench) -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(2, 3, (5, 2, 4)) for _ in range(3)]
    with kernbench.context():
        norm = nn.BatchNorm1d(2, momentum=0.25, dtype=torch.float64)
        mean, var = np.zeros(2), np.ones(2)
        for batch in batches:
            y = np.asarray(norm(torch.tensor(batch)).detach())
            np.testing.assert_allclose(y.mean((0, 2)), 0, atol=1e-12)
            np.testing.assert_allclose(y.var((0, 2)), 1, rtol=1e-4)
            mean = 0.75 * mean + 0.25 * batch.mean((0, 2))
            var = 0.75 * var + 0.25 * batch.var((0, 2), ddof=1)
        np.testing.assert_allclose(np.asarray(norm.running_mean), mean)
        np.testing.assert_allclose(np.asarray(norm.running_var), var)
        assert norm.num_batches_tracked is not None
        assert norm.num_batches_tracked.item() == 3
        norm.eval()
        found = np.asarray(norm(torch.tensor(batches[0])).detach())
        expected = (batches[0] - mean[:, None]) / np.sqrt(var[:, None] + 1e-5)
        np.testing.assert_allclose(found, expected)
        assert norm.num_batches_tracked.item() == 3
        norm.reset_parameters()
        assert [each.tolist() for each in norm.buffers()] == [[0, 0], [1, 1], 0]


def test_batch_norm_without_momentum_averages_all_batches(kernbench: Kernbench) -> None:
    batches = [np.arange(6.0).reshape(3, 2) * k for k in (1, 2, 4)]
    with kernbench.context():
        norm = nn.BatchNorm1d(2, momentum=None)
        for batch in batches:
            norm(torch.tensor(batch, dtype=torch.float32))
        assert norm.running_mean is not None
        expected = np.mean([batch.mean(0) for batch in batches], axis=0)
        assert norm.running_mean.tolist() == pytest.approx(expected.tolist())


def test_batch_norm_refuses_what_has_no_statistics(kernbench: Kernbench) -> None:
    with kernbench.context():
        with pytest.raises(OptionError, match="more than 1 value per channel"):
            nn.BatchNorm1d(2)(torch.ones(1, 2))
        with pytest.raises(OptionError, match="expected 4D input"):
            nn.BatchNorm2d(2)(torch.ones(3, 2))
        with pytest.raises(RuntimeError, match="expected running_mean"):
            F.batch_norm(torch.ones(3, 2), None, None)
        with pytest.raises(RuntimeError, match="weight should contain 2 elements not 3"):
            F.batch_norm(torch.ones(3, 2), None, None, torch.ones(3), training=True)


def test_ranks_share_the_statistics_of_the_first(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(3, momentum=1.0)
        model = nn.parallel.DistributedDataParallel(norm)
        x = torch.arange(6.0).reshape(2, 3) + rank
        model(x).sum().backward()
        own = norm.running_mean
        assert own is not None
        assert own.tolist() == [1.5 + rank, 2.5 + rank, 3.5 + rank]
        model.eval()
        model(x)
        assert norm.running_mean is not None
        assert norm.running_mean.tolist() == [1.5, 2.5, 3.5]

    kernbench.spawn(worker, nprocs=2)


def test_padding(kernbench: Kernbench) -> None:
    rows = np.arange(6.0).reshape(2, 3)
    with kernbench.context():
        x = torch.tensor(rows)
        for mode, name in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")):
            found = F.pad(x, (2, 1), mode)
            assert found.tolist() == np.pad(rows, ((0, 0), (2, 1)), name).tolist()  # type: ignore[call-overload]
        constant = F.pad(x, (1, 0, 0, 2), value=7.0)
        assert constant.tolist() == np.pad(rows, ((0, 2), (1, 0)), constant_values=7).tolist()
        assert F.pad(x, (-1, 1)).tolist() == [[1, 2, 0], [4, 5, 0]]
        with pytest.raises(OptionError, match="Unrecognised padding mode edge"):
            F.pad(x, (1, 1), "edge")
        with pytest.raises(OptionError, match="at most 2"):
            F.pad(x, (3, 0), "reflect")


def test_codes_of_classes(kernbench: Kernbench) -> None:
    with kernbench.context():
        classes = torch.tensor([[2, 0], [1, 2]])
        assert F.one_hot(classes).tolist() == np.eye(3, dtype=int)[[[2, 0], [1, 2]]].tolist()
        assert F.one_hot(classes, 4).shape == (2, 2, 4)
        with pytest.raises(IndexError, match="out of bounds"):
            F.one_hot(classes, 2).tolist()


def test_parts_of_a_model_by_name_and_place(kernbench: Kernbench) -> None:
    with kernbench.context():
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        head = model[1:]
        assert isinstance(head, nn.Sequential)
        assert [name for name, _ in head.named_children()] == ["1", "2"]
        assert head[1] is model[2]
        assert model.get_parameter("2.bias") is model[2].bias
        assert model.get_buffer("1.running_var") is model[1].running_var
        for name in ("2.scale", "1.running_var"):
            with pytest.raises(AttributeError, match="is not a parameter of Sequential"):
                model.get_parameter(name)
        named = nn.ModuleDict({"a": nn.Linear(1, 1)})
        named.update({"b": nn.Identity(), "c": nn.Identity()})
        assert isinstance(named.pop("b"), nn.Identity)
        del named["a"]
        assert list(named) == ["c"]


def test_lists_and_dicts_of_parameters(kernbench: Kernbench) -> None:
    with kernbench.context():
        listed = nn.ParameterList([torch.ones(2), nn.Parameter(torch.zeros(1)), "text"])
        listed.append(torch.ones(3))
        listed += [torch.ones(4)]
        assert [name for name, _ in listed.named_parameters()] == ["0", "1", "3", "4"]
        assert (len(listed), listed[2], len(listed[1:3])) == (5, "text", 2)
        listed[-1] = torch.zeros(5)
        assert [each.shape for each in listed.parameters()] == [(2,), (1,), (3,), (5,)]
        with pytest.raises(IndexError):
            listed[5]
        with pytest.raises(OperandError, match="should be called with an iterable"):
            listed.extend(torch.ones(2))

        named = nn.ParameterDict({"b": torch.ones(2), "a": torch.zeros(1)})
        named.update([("c", 3)])
        assert list(named) == ["a", "b", "c"]
        assert [name for name, _ in named.named_parameters()] == ["a", "b"]
        assert (named.get("z", 5), named.pop("c"), "c" in named, len(named)) == (5, 3, False, 2)
        with pytest.raises(KeyError):
            named["parameters"]
        with pytest.raises(OperandError, match="a key of ParameterDict is a string"):
            named[3] = 1
        assert repr(named) == (
            "ParameterDict(\n"
            "    (a): Parameter containing: [torch.float32 of size 1]\n"
            "    (b): Parameter containing: [torch.float32 of size 2]\n)"
        )
