"""Sequences of unequal lengths: packed, padded, and their losses, as on a CPU; and where each is."""

from typing import Any

import pytest
from bridge_devices import machine, on_ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

LENGTHS = [5, 3, 2]


def _recurrent(device: str) -> list[Any]:
    from torch.nn.utils import rnn

    torch.manual_seed(1)
    found = []
    for module in (torch.nn.LSTM(6, 4, 2, bidirectional=True), torch.nn.GRU(6, 4)):
        x = torch.randn(5, 3, 6).to(device).requires_grad_()
        packed = rnn.pack_padded_sequence(x, torch.tensor(LENGTHS))
        out, _ = module.to(device)(packed)
        padded, lengths = rnn.pad_packed_sequence(out)
        padded.square().sum().backward()
        assert padded.device == x.device
        assert lengths.device == packed.batch_sizes.device == torch.device("cpu")
        found += [padded, lengths, x.grad, *(each.grad for each in module.parameters())]
    rows = [torch.randn(length, 2).to(device) for length in (2, 3)]
    unsorted = rnn.pack_sequence(rows, enforce_sorted=False)
    assert unsorted.data.device == unsorted.sorted_indices.device == rows[0].device
    found += [rnn.pad_sequence(rows), unsorted.data]
    return [each.detach().cpu() for each in found]


def _losses(device: str) -> list[Any]:
    torch.manual_seed(2)
    scores = torch.randn(9, 2, 5)
    targets = torch.randint(1, 5, (2, 4))
    found = []
    for reduction in ("none", "mean", "sum"):
        for place in ("cpu", device):
            x = scores.clone().to(device).requires_grad_()
            loss = torch.nn.functional.ctc_loss(
                x.log_softmax(2),
                targets.to(place),
                torch.tensor([9, 7], device=place),
                torch.tensor([4, 1], device=place),
                reduction=reduction,
            )
            loss.sum().backward()
            assert loss.device == x.device
            found += [loss, x.grad]
    found.append(
        torch.nn.functional.ctc_loss(
            scores.to(device).log_softmax(2), targets.to(device), (9, 9), (4, 4)
        )
    )
    return [each.detach().cpu() for each in found]


@pytest.mark.parametrize("made", [_recurrent, _losses])
def test_they_are_those_of_a_cpu(made: Any) -> None:
    expected = made("cpu")
    (found,) = on_ranks(lambda _: made("cuda"))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("made", [_recurrent, _losses])
def test_they_have_the_same_shapes_without_numbers(made: Any) -> None:
    found: list[Any] = []
    with machine(data=False, fake=True):
        torch.multiprocessing.spawn(lambda _: found.extend(made("cuda")), nprocs=1)
    assert [each.shape for each in found] == [each.shape for each in made("cpu")]


def test_a_tensor_of_the_host_that_is_made_without_a_device_stays_there() -> None:
    """One call makes and fills those of the device; here two do."""

    def places(_: int) -> list[str]:
        x = torch.ones(3, device="cuda")
        made = [torch.Tensor(3), torch.ones(1).new(3), torch.normal(0.0, 1.0, (3,))]
        made.append(torch.nn.utils.rnn.pad_sequence([torch.ones(3)] * 2)[:, 0])
        return [each.copy_(x).device.type for each in made]

    assert on_ranks(places) == [["cpu"] * 4]
