"""Mistakes with streams and pinned memory, and what is none."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed


def _ones(count: int = 4) -> Any:
    return torch.ones(count, device="cuda")


def before_the_stream_was_made() -> None:
    x = _ones()
    with torch.cuda.stream(torch.cuda.Stream()):
        x * 2  # M10


def written_in_place() -> None:
    x = _ones()
    torch.cuda.synchronize()
    x.add_(1)
    with torch.cuda.stream(torch.cuda.Stream()):
        x * 2  # M10


def event_too_early() -> None:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    event.record()
    x = _ones()
    with torch.cuda.stream(side):
        side.wait_event(event)
        x * 2  # M10


def not_waited_for() -> None:
    side, x = torch.cuda.Stream(), _ones()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    y + 1  # M10


def read_by_the_host() -> None:
    side, x = torch.cuda.Stream(), _ones(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
    x.item()  # M10


def written_while_read() -> None:
    side, x = torch.cuda.Stream(), _ones()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x * 2
    x.zero_()  # M10


def overlapping_parts() -> None:
    side, x = torch.cuda.Stream(), _ones(8)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x[:5].mul_(2)
    x[4:].mul_(3)  # M10


def memory_of_a_tensor_that_is_gone() -> None:
    side, x = torch.cuda.Stream(), _ones()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    del x
    _ones_again = torch.zeros(4, device="cuda")  # M10
    del y


def copied_to_the_host() -> None:
    host = _ones().to("cpu", non_blocking=True)
    host.sum()  # C15


def copied_into_pinned_memory() -> None:
    host = torch.empty(4, pin_memory=True)
    host.copy_(_ones(), non_blocking=True)
    print(host)  # C15


def copied_from_pinned_memory() -> None:
    host = torch.ones(4).pin_memory()
    host.to("cuda", non_blocking=True)
    host.zero_()  # C14


ALONE = [
    before_the_stream_was_made,
    written_in_place,
    event_too_early,
    not_waited_for,
    read_by_the_host,
    written_while_read,
    overlapping_parts,
    memory_of_a_tensor_that_is_gone,
    copied_to_the_host,
    copied_into_pinned_memory,
    copied_from_pinned_memory,
]


def _refused(worker: Callable[[], None], ranks: int, *, data: bool = True) -> str:
    def run(rank: int) -> None:
        torch.cuda.set_device(rank)
        if ranks > 1:
            dist.init_process_group("nccl", rank=rank, world_size=ranks, init_method="tcp://x:1")
        worker()

    with pytest.raises(SpawnException) as failed:
        on_ranks(run, ranks, data=data)
    text = str(failed.value)
    assert "site-packages" not in text
    return text


@pytest.mark.parametrize("worker", ALONE, ids=[each.__name__ for each in ALONE])
def test_an_access_that_no_stream_orders_is_refused_at_its_line(worker: Callable[[], None]) -> None:
    text = _refused(worker, 1)
    code = next(code for code in ("M10", "C14", "C15") if f"# {code}" in text)
    assert f"[{code}]" in text


def test_the_report_has_both_lines_and_both_streams() -> None:
    text = _refused(not_waited_for, 1)
    assert "[M10] rank 0 read a tensor before aten::mul on it was waited for" in text
    assert "y + 1  # M10" in text
    assert "y = x * 2" in text
    assert "mul runs on stream 0.1, the read on the default stream" in text
    assert "tensor [4] torch.float32, bytes 0..16 of 16: read after write" in text
    assert "hint: order the streams with wait_stream(), an event, or synchronize()" in text


def test_streams_are_watched_without_numbers_too() -> None:
    assert "# M10" in _refused(written_in_place, 1, data=False)


def _reduced() -> None:
    x = _ones()
    with torch.cuda.stream(torch.cuda.Stream()):
        dist.all_reduce(x)  # M10


def _sent() -> None:
    x = _ones()
    with torch.cuda.stream(torch.cuda.Stream()):
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)  # M10


def _sent_in_a_batch() -> None:
    x, y, other = _ones(), _ones(), 1 - dist.get_rank()
    with torch.cuda.stream(torch.cuda.Stream()):
        sends = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
        dist.batch_isend_irecv(sends)  # M10


@pytest.mark.parametrize("worker", [_reduced, _sent, _sent_in_a_batch])
def test_a_communication_on_a_stream_that_has_not_waited_is_refused(
    worker: Callable[[], None],
) -> None:
    text = _refused(worker, 2)
    assert "[M10]" in text
    assert "# M10" in text


def test_what_is_ordered_is_no_mistake() -> None:
    def run(rank: int) -> float:
        x, y = _ones(8), _ones(1000)
        y.sum().item()
        side, other = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            z = y * 2  # the host has waited
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x[:4].mul_(2)
            x[4:6] + x[6:]
        x[4:] + 1  # both only read
        event = side.record_event()
        other.wait_event(event)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            x.add_(z[0])
        other.synchronize()
        y.record_stream(other)
        host = torch.ones(8).pin_memory()
        for _ in range(2):
            there = host.to("cuda", non_blocking=True)
        back = (x + there).to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        return float(back.sum().item())

    assert on_ranks(run) == [4 * 5.0 + 4 * 4.0]


def test_copies_into_tensors_that_are_there_take_the_time_of_the_bus() -> None:
    def run(rank: int) -> list[float]:
        host, there = torch.ones(1 << 20), torch.ones(1 << 20, device="cuda")
        times = []
        for copy in (lambda: there.copy_(host), lambda: host.copy_(there), there.cpu):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            copy()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        assert host.device.type == "cpu"
        return times

    (to_device, to_host, new) = on_ranks(run)[0]
    assert to_host == pytest.approx(new, rel=0.1)
    assert to_device == pytest.approx(new, rel=0.2)
