"""Messages between two ranks: values, matching, streams, times, refusals."""
# ruff: noqa: E501 - texts as users see them

from collections.abc import Callable
from typing import Any

import pytest
from report_text import failure, views

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench


def _x(value: float, count: int = 4) -> torch.Tensor:
    return torch.full((count,), float(value), device="cuda")


def _init() -> int:
    dist.init_process_group("nccl")
    size: int = dist.get_world_size()
    return size


@pytest.mark.parametrize("fidelity", ["kernel", "tile", "functional"])
def test_a_ring_of_unequal_ranks(kernbench: Kernbench, fidelity: str) -> None:
    """An in-place change right after the send reaches nobody."""
    got: dict[int, list[float]] = {}

    def worker(rank: int) -> None:
        n = _init()
        x, y = _x(rank), torch.empty(4, device="cuda")
        for _ in range(2 * rank):
            x.mul_(1)
        if rank % 2:
            assert dist.recv(y, (rank - 1) % n) == (rank - 1) % n
            dist.send(x, (rank + 1) % n)
        else:
            dist.send(x, (rank + 1) % n)
            x.mul_(100)
            assert dist.recv(y, (rank - 1) % n) == (rank - 1) % n
        got[rank] = y.tolist()

    kernbench.spawn(worker, nprocs=4, fidelity=fidelity)
    assert got == {rank: [float((rank - 1) % 4)] * 4 for rank in range(4)}


def test_a_send_holds_up_the_stream_and_not_the_host(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        x = _x(rank, 1 << 20)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if rank == 0:
            start.record()
            dist.send(x, 1)
            assert not torch.cuda.current_stream().query()
            end.record()
            end.synchronize()
            assert start.elapsed_time(end) > 0.05
        else:
            for _ in range(50):
                x.mul_(1.5)
            dist.recv(x, 0)
            assert x[0].item() == 0

    kernbench.spawn(worker, nprocs=2)


def test_first_in_first_out_for_each_source_and_tag(kernbench: Kernbench) -> None:
    seen: list[tuple[float, ...]] = []

    def worker(rank: int) -> None:
        _init()
        if rank == 0:
            works = [dist.isend(_x(10), 1, tag=1), dist.isend(_x(20), 1, tag=2)]
            works += [dist.isend(_x(11), 1, tag=1)]
        elif rank == 2:
            works = [dist.isend(_x(30), 1, tag=2)]
        else:
            into = [_x(0) for _ in range(4)]
            works = [
                dist.irecv(into[0], 0, tag=1),
                dist.irecv(into[1], 0, tag=2),
                dist.irecv(into[2], 2, tag=2),
                dist.irecv(into[3], 0, tag=1),
            ]
            for work in works:
                work.wait()
            seen.append(tuple(x[0].item() for x in into))
        for work in works:
            work.wait()

    kernbench.spawn(worker, nprocs=3)
    assert seen == [(10, 20, 30, 11)]


def test_an_asynchronous_receive_must_be_waited_for_before_a_read(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        x = _x(rank)
        if rank == 0:
            dist.send(x, 1)
        else:
            work = dist.irecv(x, 0)
            x.tolist()
            work.wait()

    errors = failure(kernbench, worker, 2).errors
    assert [(rank, getattr(error, "code", "")) for rank, error in errors.items()] == [(1, "C15")]


def test_writing_what_is_being_sent_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        x = _x(rank)
        if rank == 0:
            work = dist.isend(x, 1)
            x.mul_(2)
            work.wait()
        else:
            dist.recv(x, 0)

    errors = failure(kernbench, worker, 2).errors
    assert [(rank, getattr(error, "code", "")) for rank, error in errors.items()] == [(0, "C14")]


def test_numbers_in_a_group(kernbench: Kernbench) -> None:
    got: list[Any] = []

    def worker(rank: int) -> None:
        _init()
        pair = dist.new_group([1, 3])
        if rank == 3:
            dist.send(_x(3), group=pair, group_dst=0)
        elif rank == 1:
            x = _x(0)
            got.append((dist.recv(x, group=pair, group_src=1), x.tolist()))
        dist.destroy_process_group(pair)

    kernbench.spawn(worker, nprocs=4)
    assert got == [(3, [3.0] * 4)]


def test_groups_and_collectives_do_not_get_into_each_others_way(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        other = dist.new_group([0, 1])
        x, y = _x(rank), _x(rank)
        if rank == 0:
            first, second = dist.isend(_x(5), 1), dist.isend(_x(6), 1, group=other)
        else:
            second, first = dist.irecv(y, 0, group=other), dist.irecv(x, 0)
        dist.all_reduce(_x(1))
        first.wait()
        second.wait()
        if rank:
            assert (x[0].item(), y[0].item()) == (5, 6)
        dist.destroy_process_group(other)

    kernbench.spawn(worker, nprocs=2)


def test_a_batch_is_under_way_all_at_once(kernbench: Kernbench) -> None:
    got: dict[int, tuple[list[float], list[float]]] = {}

    def worker(rank: int) -> None:
        n = _init()
        x, left, right = _x(rank), _x(-1), _x(-1)
        x.mul_(2)
        operations = [
            dist.P2POp(dist.isend, x, (rank + 1) % n),
            dist.P2POp(dist.isend, x, (rank - 1) % n),
            dist.P2POp(dist.irecv, left, (rank - 1) % n),
            dist.P2POp(dist.irecv, right, group_peer=(rank + 1) % n),
        ]
        works = dist.batch_isend_irecv(operations)
        assert len(works) == 1
        works[0].wait()
        got[rank] = (left.tolist(), right.tolist())

    kernbench.spawn(worker, nprocs=3)
    assert got == {r: ([2.0 * ((r - 1) % 3)] * 4, [2.0 * ((r + 1) % 3)] * 4) for r in range(3)}


def test_batches_of_a_rank_run_one_after_the_other(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        x, y = _x(rank), _x(-1)
        for round_ in range(3):
            x.add_(round_)
            (work,) = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
            )
            work.wait()
            x.copy_(y)
        assert x[0].item() == {0: 1, 1: 0}[rank] + 3

    kernbench.spawn(worker, nprocs=2)


def test_from_anybody_takes_who_came_first_then_the_lowest_rank(kernbench: Kernbench) -> None:
    order: list[tuple[int, float]] = []

    def worker(rank: int) -> None:
        n = _init()
        x = _x(rank)
        if rank == 0:
            order.extend((dist.recv(x), x[0].item()) for _ in range(n - 1))
        else:
            for _ in range({1: 9, 2: 4, 3: 4, 4: 0}[rank]):
                x.mul_(1)
            dist.send(x, 0)

    kernbench.spawn(worker, nprocs=5)
    assert order == [(4, 4), (2, 2), (3, 3), (1, 1)]


def test_a_receive_from_anybody_with_a_choice_is_marked_in_the_trace(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        x = _x(rank)
        if rank == 0:
            for _ in range(10):
                x.mul_(1)
            torch.cuda.synchronize()
            assert [dist.recv(x), dist.recv(x)] == [1, 2]
        else:
            dist.send(x, 0)

    ctx = kernbench.context(record="full")
    ctx.multiprocessing.spawn(worker, nprocs=3)
    marks = [r.args.get("candidates") for r in ctx.engine.op_log.records if r.name == "recv"]
    assert marks == [2, None]


def test_from_anybody_takes_a_message_whose_stream_comes_later(kernbench: Kernbench) -> None:
    """The sender's stream is known to come, at a time still ahead, when the receive looks."""
    got: list[float] = []

    def worker(rank: int) -> None:
        _init()
        x = _x(rank)
        if rank == 0:
            x.mul_(1)
            dist.send(x, dst=1, tag=5)
        else:
            assert dist.recv(x, tag=5) == 0
            got.extend(x.tolist())

    kernbench.spawn(worker, nprocs=2)
    assert got == [0.0] * 4


@pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda"), ("gloo", "cpu")])
def test_a_handle_knows_the_source(kernbench: Kernbench, backend: str, device: str) -> None:
    """Ranks send to everybody in turn, as in PyTorch's `test_send_recv_any_source`."""
    taken: dict[int, list[int]] = {}

    def worker(rank: int) -> None:
        dist.init_process_group(backend)
        x, n = torch.full((1000,), float(rank), device=device), dist.get_world_size()
        for receiver in range(n):
            if receiver != rank:
                dist.send(x, receiver)
                dist.send(x, receiver)
                continue
            for _ in range(n - 1):
                y = torch.empty(1000, device=device)
                taken.setdefault(rank, []).append(dist.recv(y))
                work = dist.irecv(y)
                work.wait()
                source = work._source_rank()
                taken[rank].append(source)
                assert y.eq(source).all()

    kernbench.spawn(worker, nprocs=4)
    for rank, sources in taken.items():
        assert sorted(sources) == sorted(2 * [other for other in range(4) if other != rank])


def test_the_source_of_a_handle_is_a_rank_of_its_group(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        group, x = dist.new_group([1, 2]), _x(rank)
        if rank == 1:
            work = dist.isend(x, 2, group=group)
            with pytest.raises(TypeError, match=r"_source_rank\(\) of send: only a receive has"):
                work._source_rank()
            work.wait()
        if rank == 2:
            work = dist.irecv(x, group=group)
            assert work._source_rank() == 0
            work.wait()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=3)


def test_p6_from_anybody_in_a_group_of_one(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        group = dist.new_group([0])
        if rank == 0:
            dist.recv(_x(0), group=group)
        dist.barrier()

    assert views(kernbench, worker, 2) == {
        (0,): """\
PeerError: [P6] rank 0 called recv for a message from any rank of group G1{0}, which has no other rank
  message #1 of group G1{0} at 2 us, at FILE+4: dist.recv(_x(0), group=group)
  hint: copy inside a rank with copy_()""",
    }


def test_messages_between_hosts_of_different_tags_do_not_wait_for_each_other(
    kernbench: Kernbench,
) -> None:
    """Gloo matches by tag; NCCL, which ignores tags, keeps the messages of a pair in order."""

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        one, two = torch.zeros(4, device="cpu"), torch.zeros(4, device="cpu")
        if rank == 0:
            works = [dist.isend(torch.full((4,), 1.0 * t, device="cpu"), 1, tag=t) for t in (1, 2)]
            for work in works:
                work.wait()
        else:
            dist.recv(two, 0, tag=2)
            dist.recv(one, 0, tag=1)
            assert (one.tolist(), two.tolist()) == ([1.0] * 4, [2.0] * 4)

    kernbench.spawn(worker, nprocs=2)


def test_a_known_source_behind_anybody_keeps_its_place(kernbench: Kernbench) -> None:
    got: list[float] = []

    def worker(rank: int) -> None:
        _init()
        if rank == 1:
            first, second = _x(0), _x(0)
            works = [dist.irecv(first), dist.irecv(second, 0)]
            for work in works:
                work.wait()
            got.extend([first[0].item(), second[0].item()])
        else:
            dist.send(_x(1), 1)
            dist.send(_x(2), 1)

    kernbench.spawn(worker, nprocs=2)
    assert got == [1, 2]


def test_an_eager_send_is_done_with_its_tensor(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        x = _x(rank)
        if rank == 0:
            dist.send(x, 1)
            x.mul_(7)
            torch.cuda.synchronize()
            dist.send(x, 1, tag=1)
        else:
            y = _x(0)
            dist.recv(y, 0)
            dist.recv(x, 0, tag=1)
            assert (y[0].item(), x[0].item()) == (0, 0)

    kernbench.spawn(worker, nprocs=2, eager_limit=16)


def _other_type(rank: int) -> None:
    _init()
    if rank == 0:
        dist.send(_x(0), 2)
    elif rank == 2:
        dist.recv(torch.zeros(4, dtype=torch.int32, device="cuda"), 0)


def _other_size_from_anybody(rank: int) -> None:
    _init()
    if rank == 1:
        dist.send(_x(0, 6), 0)
    elif rank == 0:
        dist.recv(_x(0))


def test_p7_the_type_differs(kernbench: Kernbench) -> None:
    assert views(kernbench, _other_type, 3) == {
        (0, 2): """\
TransferMismatchError: [P7] rank 0 sends [4] torch.float32, 16 B to rank 2, which receives [4] torch.int32, 16 B
  rank 0, message #1 of group WORLD: send([4], torch.float32, to rank 2, tag 0) at 2 us, at FILE+3: dist.send(_x(0), 2)
  rank 2, message #1 of group WORLD: recv([4], torch.int32, from rank 0, tag 0) at 2 us, at FILE+5: dist.recv(torch.zeros(4, dtype=torch.int32, device="cuda"), 0)
  hint: both sides of a message have one type; nothing is cut or reinterpreted""",
    }


def test_p7_the_size_differs(kernbench: Kernbench) -> None:
    assert views(kernbench, _other_size_from_anybody, 3) == {
        (0, 1): """\
TransferMismatchError: [P7] rank 1 sends [6] torch.float32, 24 B to rank 0, which receives [4] torch.float32, 16 B
  rank 1, message #1 of group WORLD: send([6], torch.float32, to rank 0, tag 0) at 2 us, at FILE+3: dist.send(_x(0, 6), 0)
  rank 0, message #1 of group WORLD: recv([4], torch.float32, from any rank, tag 0) at 2 us, at FILE+5: dist.recv(_x(0))
  hint: both sides of a message have one size; nothing is cut or reinterpreted""",
    }


def test_p7_another_shape_of_the_same_size_is_fine(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        if rank == 0:
            dist.send(torch.arange(6, device="cuda").reshape(2, 3), 1)
        else:
            x = torch.zeros(6, dtype=torch.int64, device="cuda")
            dist.recv(x, 0)
            assert x.tolist() == list(range(6))

    kernbench.spawn(worker, nprocs=2)


def test_p9_a_rank_that_does_not_exist(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        group = dist.new_group([0, 2, 3])
        if rank == 0:
            dist.send(_x(0), 4)
        if rank == 1:
            dist.recv(_x(0), -1)
        if rank == 2:
            dist.isend(_x(0), 1, group=group)
        if rank == 3:
            dist.irecv(_x(0), group=group, group_src=3)

    assert views(kernbench, worker, 4) == {
        (0,): """\
PeerError: [P9] rank 0 called send(dst=4): there is no such rank
  message #1 of group WORLD at 2 us, at FILE+4: dist.send(_x(0), 4)
  expected 0..3, numbered globally
  hint: dst= takes global ranks, group_dst= ranks in the group""",
        (1,): """\
PeerError: [P9] rank 1 called recv(src=-1): there is no such rank
  message #1 of group WORLD at 2 us, at FILE+6: dist.recv(_x(0), -1)
  expected 0..3, numbered globally
  hint: src= takes global ranks, group_src= ranks in the group""",
        (2,): """\
PeerError: [P9] rank 2 called isend(dst=1): there is no such rank
  message #1 of group G1{0,2-3} at 2 us, at FILE+8: dist.isend(_x(0), 1, group=group)
  expected a member of group G1{0,2-3}, numbered globally: 0, 2, 3
  hint: dst= takes global ranks, group_dst= ranks in the group""",
        (3,): """\
PeerError: [P9] rank 3 called irecv(group_src=3): there is no such rank
  message #1 of group G1{0,2-3} at 2 us, at FILE+10: dist.irecv(_x(0), group=group, group_src=3)
  expected 0..2, numbered inside group G1{0,2-3}
  hint: src= takes global ranks, group_src= ranks in the group""",
    }


def test_p6_to_oneself(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        if rank == 1:
            dist.send(_x(0), 1)
        if rank == 2:
            dist.recv(_x(0), group_src=2)

    assert views(kernbench, worker, 3) == {
        (1,): """\
PeerError: [P6] rank 1 called send with itself as the other side
  message #1 of group WORLD at 2 us, at FILE+3: dist.send(_x(0), 1)
  PyTorch refuses it, and a blocking one never ends
  hint: copy inside a rank with copy_()""",
        (2,): """\
PeerError: [P6] rank 2 called recv with itself as the other side
  message #1 of group WORLD at 2 us, at FILE+5: dist.recv(_x(0), group_src=2)
  PyTorch refuses it, and a blocking one never ends
  hint: copy inside a rank with copy_()""",
    }


def _no_peer() -> None:
    dist.send(_x(0))


def _two_peers() -> None:
    dist.recv(_x(0), 1, group_src=1)


def _no_number() -> None:
    dist.isend(_x(0), True)


def _host() -> None:
    dist.send(torch.zeros(4, device="cpu"), 1)


def _strided() -> None:
    dist.recv(torch.zeros((4, 4), device="cuda").t(), 1)


def _no_operation() -> None:
    dist.P2POp(dist.send, _x(0), 1)


def _nothing() -> None:
    dist.batch_isend_irecv([])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (_no_peer, "send: expected either dst or group_dst; got neither"),
        (_two_peers, "recv: expected either src or group_src; got both"),
        (_no_number, "a rank is an integer"),
        (_host, "called send on a tensor on cpu"),
        (_strided, "called recv on a tensor that is not contiguous"),
        (_no_operation, "P2POp takes isend or irecv; got 'send'"),
        (_nothing, "batch_isend_irecv takes a list of P2POp of one group"),
    ],
)
def test_arguments_are_checked(kernbench: Kernbench, call: Callable[[], None], text: str) -> None:
    def worker(rank: int) -> None:
        _init()
        if rank == 0:
            call()

    errors = failure(kernbench, worker, 2).errors
    assert list(errors) == [0]
    assert text in str(errors[0])
    assert isinstance(errors[0], ValueError)


def test_works_of_a_context_of_its_own(kernbench: Kernbench) -> None:
    def worker(rank: int, torch: Any) -> None:
        dist = torch.distributed
        dist.init_process_group("nccl")
        x = torch.ones(2, device="cuda")
        peer = 1 - rank
        op = dist.isend if rank else dist.irecv
        for work in dist.batch_isend_irecv([dist.P2POp(op, x, peer)]):
            work.wait()

    ctx = kernbench.context()
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)


def test_synchronizing_a_stream_covers_what_it_has_waited_for(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        x = _x(rank, 1 << 16)
        if rank == 0:
            for _ in range(20):
                x.mul_(2)
            dist.send(x, 1)
        else:
            torch.cuda.synchronize()
            work = dist.irecv(x, 0)
            work.wait()
            torch.cuda.current_stream().synchronize()
            assert work.is_completed()
            assert torch.cuda.current_stream().query()

    kernbench.spawn(worker, nprocs=2)


def test_a_handle_that_was_seen_to_be_complete_counts_as_waited_for(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        _init()
        x = _x(rank)
        work = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
        while not work.is_completed():
            pass
        assert x[0].item() == 0

    kernbench.spawn(worker, nprocs=2)


def test_channels_that_only_send_are_faster(kernbench: Kernbench) -> None:
    """NCCL's channels carry what goes `d` ranks on and what comes from `d` ranks back."""

    def us(count: int, nbytes: int, peers: Callable[[int], tuple[list[int], list[int]]]) -> float:
        times = []

        def worker(rank: int) -> None:
            _init()
            x = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            sends, takes = peers(rank)
            ops = [dist.P2POp(dist.isend, x, peer) for peer in sends]
            ops += [dist.P2POp(dist.irecv, torch.empty_like(x), peer) for peer in takes]
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for work in dist.batch_isend_irecv(ops) if ops else ():
                work.wait()
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end))

        kernbench.spawn(worker, nprocs=count, machine="h200x8", data=False)
        return max(times)

    def rate(count: int, peers: Callable[[int], tuple[list[int], list[int]]]) -> float:
        """Returns the GB/s of what 64 MiB have more than 32; the host takes as long for both."""
        return (32 << 20) / (us(count, 64 << 20, peers) - us(count, 32 << 20, peers)) / 1e3

    def exchanged(rank: int) -> tuple[list[int], list[int]]:
        return ([1 - rank], [1 - rank]) if rank < 2 else ([], [])

    # 4 of 32 channels among 8 ranks, 16 among 2; 34 GB/s one way and 20 both ways.
    sent = {0: ([1], []), 1: ([], [0])}
    assert rate(8, lambda rank: sent.get(rank, ([], []))) == pytest.approx(4 * 34, rel=0.01)
    assert rate(8, lambda rank: ([(rank + 1) % 8], [(rank - 1) % 8])) == pytest.approx(80, rel=0.01)
    assert rate(8, exchanged) == pytest.approx(4 * 34, rel=0.01)
    assert rate(2, exchanged) == pytest.approx(16 * 20, rel=0.01)
