"""Batches both ways around a ring: pieces of messages that share links are skipped."""

from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ccl import cycles, replay
from kernbench.hw.queue import Queue
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

RANKS, ROUNDS, ELEMENTS, PIECE = 4, 12, 8 << 20, 64 << 10
"""Of float32, in pieces of 256 KiB."""


def ring() -> list[float]:
    """Returns how long each rank takes until the end of each round, in milliseconds."""
    ends: list[float] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.empty(2, ELEMENTS, device="cuda")
        y = torch.empty_like(x)
        w = torch.empty(256 * (rank + 1), 256, device="cuda")
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(ROUNDS + 1)]
        marks[0].record()
        for number in range(ROUNDS):
            for _ in range((rank + number) % 3):
                w @ w.T  # so that ranks come at unequal times
            ops = []
            for way, (to, source) in enumerate([(1, -1), (-1, 1)]):
                ops.append(dist.P2POp(dist.isend, x[way], (rank + to) % RANKS))
                ops.append(dist.P2POp(dist.irecv, y[way], (rank + source) % RANKS))
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            marks[number + 1].record()
        torch.cuda.synchronize()
        ends.extend(marks[0].elapsed_time(mark) for mark in marks[1:])
        dist.destroy_process_group()

    with RuntimeContext(
        RunSpec(topology="h200x8", overrides=("system.sip.overlap=null",), data=False)
    ) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    return ends


def test_pieces_that_share_links_are_skipped_and_no_time_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    posted = [0]
    post = Queue.post

    def counted(self: Queue, *args: Any) -> None:
        posted[0] += 1
        post(self, *args)

    monkeypatch.setattr(Queue, "post", counted)
    skipped = ring()
    few = posted[0]
    for module in (cycles, replay):
        monkeypatch.setattr(module, "LONG", 1 << 60)
    monkeypatch.setattr(replay, "MANY", 1 << 60)
    assert skipped == ring()
    sent = ROUNDS * 2 * RANKS * ELEMENTS // PIECE
    assert posted[0] - few >= sent
    assert few < sent * 3 // 4
