"""Recurrent networks, sequences of unequal lengths, and their losses: as on a CPU."""

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
    plain = torch.nn.RNN(6, 4, 2, nonlinearity="relu", bias=False)
    for module in (torch.nn.LSTM(6, 4, 2, bidirectional=True), torch.nn.GRU(6, 4), plain):
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


def _whole(device: str) -> list[Any]:
    torch.manual_seed(3)
    module = torch.nn.LSTM(6, 4, 2, proj_size=3, batch_first=True).to(device)
    x = torch.randn(2, 5, 6).to(device).requires_grad_()
    out, (state, cells) = module(x)
    (out.square().sum() + cells.sum()).backward()
    found = [out, state, cells, x.grad, *(each.grad for each in module.parameters())]
    assert {each.device.type for each in found} == {device}
    one, _ = torch.nn.GRU(6, 4).to(device)(torch.ones(5, 6, device=device))
    return [each.detach().cpu() for each in (*found, one)]


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of a CPU
@pytest.mark.parametrize("made", [_recurrent, _whole, _losses])
def test_they_are_those_of_a_cpu(made: Any) -> None:
    expected = made("cpu")
    (found,) = on_ranks(lambda _: made("cuda"))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("made", [_recurrent, _whole, _losses])
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


def test_gradients_drop_what_the_pass_forward_has_dropped() -> None:
    """The slope along a direction, between two passes of the same seed, in float64."""

    def slopes(_: int) -> tuple[float, float]:
        torch.manual_seed(0)
        module = torch.nn.LSTM(5, 8, 2, dropout=0.5).cuda().double()
        x = torch.randn(7, 3, 5).cuda().double().requires_grad_()
        along = torch.randn(7, 3, 5).cuda().double()

        def found(at: Any) -> Any:
            torch.manual_seed(4)
            return module(at)[0].square().sum()

        found(x).backward()
        with torch.no_grad():
            step = 1e-6 * along
            apart = (found(x + step) - found(x - step)) / 2e-6
        return float((x.grad * along).sum()), float(apart)

    ((told, measured),) = on_ranks(slopes)
    assert told == pytest.approx(measured, rel=1e-5)
    assert told != 0


def test_a_network_takes_its_steps_one_after_the_other() -> None:
    """By its time on the device; sequences of the same elements in more steps take longer."""
    from torch.nn.utils import rnn

    def times(_: int) -> list[float]:
        module = torch.nn.LSTM(64, 256).cuda()
        found = []
        for lengths in ([4, 4, 4], [10, 1, 1]):
            packed = rnn.pack_sequence([torch.ones(each, 64, device="cuda") for each in lengths])
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            module(packed)
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end))
        return found

    ((short, long),) = on_ranks(times, data=False)
    assert long - short == pytest.approx(6 * 15.4e-3, rel=0.1)


def test_without_cudnn_a_network_is_its_products() -> None:
    def names(_: int) -> list[str]:
        from autocast_oracle import Seen

        module, x = torch.nn.LSTM(4, 4).cuda(), torch.ones(2, 1, 4, device="cuda")
        with Seen() as seen, torch.backends.cudnn.flags(enabled=False):
            module(x)
        assert "_cudnn_rnn" not in seen.names
        with Seen() as seen:
            module(x)
        return list(seen.names)

    (called,) = on_ranks(names)
    assert "_cudnn_rnn" in called
