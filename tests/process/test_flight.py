"""What `RuntimeContext.flight_record` says of ranks that run, that failed, and that are done."""

import json
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.process.recent_calls import RECENT
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench


def _calls(rank: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (call["operation"], call["group"], call["sequence"], call["state"])
        for call in rank["calls"]
    ]


def test_ranks_that_are_stuck(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        pair = dist.new_group([0, 1])
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        if rank == 2:
            return
        x.tolist()
        if rank == 0:
            dist.all_reduce(x, group=pair)
        dist.recv(x, 1 - rank)
        dist.send(x, 1 - rank)
        x.tolist()

    ctx = kernbench.context()
    with pytest.raises(SpawnException):
        ctx.multiprocessing.spawn(worker, nprocs=3)
    record = json.loads(json.dumps(ctx.flight_record()))
    assert record["schema_version"] == 1
    ranks = record["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2]
    assert _calls(ranks[0]) == [
        ("all_reduce", "WORLD", 1, "completed"),
        ("all_reduce", "G1{0-1}", 1, "started"),
        ("recv", "WORLD", 1, "called"),
        ("send", "WORLD", 1, "called"),
    ]
    assert _calls(ranks[1])[1:] == [
        ("recv", "WORLD", 1, "started"),
        ("send", "WORLD", 1, "called"),
    ]
    assert _calls(ranks[2]) == [("all_reduce", "WORLD", 1, "completed")]
    assert [rank["waits_for"] for rank in ranks] == ["Memcpy DtoH", "Memcpy DtoH", None]
    assert ranks[2]["streams"] == {}
    heads = {name: head["command"] for name, head in ranks[1]["streams"].items()}
    assert heads == {
        "stream 1": "Memcpy DtoH",
        "messages with rank 0 in WORLD": "recv",
    }
    assert ranks[1]["streams"]["messages with rank 0 in WORLD"]["state"] == "started"
    assert ranks[1]["streams"]["stream 1"]["state"] == "queued"
    call = ranks[0]["calls"][1]
    assert call["call"] == "all_reduce([4], torch.float32, sum)"
    assert "test_flight.py:" in call["site"]
    assert 0 < call["time_ps"] <= ranks[0]["time_ps"]


def test_it_keeps_the_last_calls_and_no_tensors(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        for _ in range(RECENT + 3):
            dist.all_reduce(x)

    ctx = kernbench.spawn(worker, nprocs=2)
    for rank in ctx.flight_record()["ranks"]:
        assert [call["sequence"] for call in rank["calls"]] == list(range(4, RECENT + 4))
        assert {call["state"] for call in rank["calls"]} == {"completed"}
    assert ctx.cuda.memory_allocated(0) == 0


def test_it_can_be_asked_for_at_any_time(kernbench: Kernbench) -> None:
    seen: list[Any] = []

    def worker(rank: int, ctx: RuntimeContext) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        if rank == 1:
            torch.cuda.current_stream().query()
            seen.append(ctx.flight_record()["ranks"][0])
        dist.all_reduce(x)
        x.tolist()

    ctx = kernbench.context()
    assert ctx.flight_record()["ranks"] == []
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)
    assert seen[0]["alive"]
    assert seen[0]["waits_for"] == "Memcpy DtoH"
    assert _calls(seen[0]) == [("all_reduce", "WORLD", 1, "started")]
