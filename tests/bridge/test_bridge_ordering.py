"""Which calls order what: each row of the table, against what the bridge tells."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_devices import on_ranks

import kernbench
from kernbench.process.ordering import ROWS, Row
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed


class Scene:
    """Work of two streams that nobody has waited for, and memory of the host of both kinds."""

    def __init__(self) -> None:
        self.pageable = torch.ones(4)
        self.pinned = torch.ones(4).pin_memory()
        self.x = torch.ones(4, device="cuda")
        self.other = torch.cuda.Stream()
        self.other.wait_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        self.x.add_(1)
        with torch.cuda.stream(self.other):
            self.y = torch.ones(4, device="cuda")
        self.event = self.other.record_event()
        self.host: Any = None


def _answered(question: Callable[[], bool]) -> None:
    while not question():
        pass


SIZES: dict[str, Callable[[Scene], Any]] = {
    "nonzero": lambda s: torch.nonzero(s.x),
    "mask": lambda s: s.x[s.x > 0],
    "masked_select": lambda s: torch.masked_select(s.x, s.x > 0),
    "unique": lambda s: torch.unique(s.x),
}
READS: dict[str, Callable[[Scene], Any]] = {
    "item": lambda s: s.x[0].item(),
    "bool": lambda s: bool(s.x[0]),
    "equal": lambda s: torch.equal(s.x, s.x),
    "cpu": lambda s: s.x.cpu(),
    "tolist": lambda s: s.x.tolist(),
    "print": lambda s: str(s.x),
}


def _lent(name: str, **how: bool) -> Callable[[Scene], None]:
    def up(scene: Scene) -> None:
        scene.host = getattr(scene, name)
        scene.host.to("cuda", **how)

    return up


def _filled(name: str, **how: bool) -> Callable[[Scene], None]:
    def down(scene: Scene) -> None:
        scene.host = getattr(scene, name)
        scene.host.copy_(scene.x, **how)

    return down


def _new_on_host(scene: Scene) -> None:
    scene.host = scene.x.to("cpu", non_blocking=True)
    assert scene.host.is_pinned()


CALLS: dict[str, list[Callable[[Scene], Any]]] = {
    'pageable.to("cuda")': [_lent("pageable")],
    'pinned.to("cuda")': [_lent("pinned")],
    'pageable.to("cuda", non_blocking=True)': [_lent("pageable", non_blocking=True)],
    'pinned.to("cuda", non_blocking=True)': [_lent("pinned", non_blocking=True)],
    "pageable.copy_(x)": [_filled("pageable")],
    "pinned.copy_(x)": [_filled("pinned")],
    "pageable.copy_(x, non_blocking=True)": [_filled("pageable", non_blocking=True)],
    "pinned.copy_(x, non_blocking=True)": [_filled("pinned", non_blocking=True)],
    'x.to("cpu", non_blocking=True)': [_new_on_host],
    "x.cpu(), x.tolist(), print(x)": [READS[name] for name in ("cpu", "tolist", "print")],
    "x.item(), bool(x), torch.equal(x, y)": [READS[name] for name in ("item", "bool", "equal")],
    "torch.tensor([1.0], device='cuda')": [lambda s: torch.tensor([1.0], device="cuda")],
    "torch.zeros(4, device='cuda'), x.fill_(1)": [
        lambda s: torch.zeros(4, device="cuda"),
        lambda s: s.x.fill_(1),
    ],
    "torch.nonzero(x), x[x > 0], torch.masked_select(x, x > 0), torch.unique(x)": [*SIZES.values()],
    "x.copy_(y), y + 1": [lambda s: s.x.copy_(s.x * 2), lambda s: s.x + 1],
    "torch.empty(4, device='cuda'), torch.cuda.empty_cache()": [
        lambda s: torch.empty(4, device="cuda"),
        lambda s: torch.cuda.empty_cache(),
    ],
    "torch.cuda.synchronize()": [lambda s: torch.cuda.synchronize()],
    "stream.synchronize()": [lambda s: s.other.synchronize()],
    "stream.query() is True": [lambda s: _answered(s.other.query)],
    "event.synchronize()": [lambda s: s.event.synchronize()],
    "event.query() is True": [lambda s: _answered(s.event.query)],
}
"""Calls of rows that say for what the host waits."""


def _stream_after_event(*, ordered: bool) -> None:
    x, event, side = torch.ones(4, device="cuda"), torch.cuda.Event(), torch.cuda.Stream()
    if ordered:
        event.record()
        side.wait_event(event)
    else:
        side.wait_event(event)  # which nobody has recorded
        event.record()
    with torch.cuda.stream(side):
        x + 1


def _event_after_work(*, ordered: bool) -> None:
    event, side = torch.cuda.Event(), torch.cuda.Stream()
    if not ordered:
        event.record(torch.cuda.current_stream())
    x = torch.ones(4, device="cuda")
    if ordered:
        event.record(torch.cuda.current_stream())
    event.wait(side)
    with torch.cuda.stream(side):
        x + 1


def _stream_after_stream(*, ordered: bool) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    if not ordered:
        x.add_(1)
    with torch.cuda.stream(side):
        x + 1


def _default_stream(*, ordered: bool) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.ones(4, device="cuda")
    if ordered:
        torch.cuda.default_stream().wait_stream(side)
    x + 1


def _memory_again(*, ordered: bool) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    if ordered:
        x.record_stream(side)
    del x
    torch.zeros(4, device="cuda")
    del y


def _after_work(*, ordered: bool) -> None:
    x = torch.ones(4, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    if ordered:
        work.wait()
        dist.all_reduce(x)
    x + 1
    work.wait()


STREAMS: dict[str, tuple[Callable[..., None], str]] = {
    "memory of a tensor that is gone, to one made on the same stream": (_memory_again, "M10"),
    "event.record(stream)": (_event_after_work, "M10"),
    "stream.wait_event(event), event.wait(stream)": (_stream_after_event, "M10"),
    "stream.wait_stream(other)": (_stream_after_stream, "M10"),
    "the default stream and others": (_default_stream, "M10"),
    "work.wait() of NCCL, a call without async_op": (_after_work, "C15"),
}
"""Of rows that say which stream comes after which: a program that is ordered or not, and the code
of the mistake."""

KNOWN = {
    "nothing": set[str](),
    "the current stream": {"x"},
    "the stream": {"y"},
    "the event": {"y"},
    "all streams": {"x", "y"},
}
"""What another stream may read after a call for which the host has waited so."""


def _code(worker: Callable[[], Any], ranks: int = 1) -> str:
    """Returns the code of the mistake that is told; an empty text if none is."""

    def run(rank: int) -> None:
        torch.cuda.set_device(rank)
        if ranks > 1:
            dist.init_process_group("nccl", rank=rank, world_size=ranks, init_method="tcp://x:1")
        worker()

    try:
        on_ranks(run, ranks)
    except SpawnException as error:
        return next(code for code in ("M10", "C14", "C15") if f"[{code}]" in str(error))
    return ""


def test_every_row_has_a_program() -> None:
    assert {row.call for row in ROWS} == CALLS.keys() | STREAMS.keys()


_WAITS = [row for row in ROWS if row.call in CALLS]


@pytest.mark.parametrize("row", _WAITS, ids=[row.call for row in _WAITS])
def test_the_host_has_waited_for_what_the_row_says(row: Row) -> None:
    for call in CALLS[row.call]:
        for name in ("x", "y"):

            def read(call: Callable[[Scene], Any] = call, name: str = name) -> None:
                scene = Scene()
                tensor = getattr(scene, name)
                call(scene)
                with torch.cuda.stream(torch.cuda.Stream()):
                    tensor + 1

            assert _code(read) == ("" if name in KNOWN[row.host] else "M10"), (row.call, name)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.buffer and row.call in CALLS], ids=lambda row: row.call
)
def test_memory_of_the_host_is_free_or_lent_as_the_row_says(row: Row) -> None:
    told = {"free": ("", ""), "not to be written before a wait": ("", "C14")}
    told["not to be touched before a wait"] = ("C15", "C14")
    for call in CALLS[row.call]:

        def read(call: Callable[[Scene], Any] = call) -> None:
            scene = Scene()
            call(scene)
            if scene.host is not None:
                scene.host + 1

        def write(call: Callable[[Scene], Any] = call) -> None:
            scene = Scene()
            call(scene)
            if scene.host is not None:
                scene.host.zero_()

        assert (_code(read), _code(write)) == told[row.buffer], row.call


@pytest.mark.parametrize("call", STREAMS)
def test_a_stream_comes_after_another_one_as_the_row_says(call: str) -> None:
    program, code = STREAMS[call]
    ranks = 2 if code == "C15" else 1
    assert _code(lambda: program(ordered=True), ranks) == ""
    assert _code(lambda: program(ordered=False), ranks) == code


def test_what_is_copied_out_and_in_on_one_stream_is_in_order() -> None:
    def run(rank: int) -> tuple[list[float], float]:
        x = torch.arange(4.0, device="cuda")
        pinned = torch.empty(4, pin_memory=True)
        pinned.copy_(x, non_blocking=True)
        again = pinned.to("cuda", non_blocking=True)
        torch._foreach_copy_([pinned], [again], non_blocking=True)
        there = torch.empty_like(x).copy_(pinned)
        weight = torch.ones(4, device="cuda", requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = (weight * weight * x).sum()
        loss.backward()
        return (again + there).tolist(), float(weight.grad.sum())

    assert on_ranks(run) == [([0.0, 2.0, 4.0, 6.0], 12.0)]


def test_what_is_copied_out_and_in_on_two_streams_is_not() -> None:
    def run() -> None:
        x, pinned = torch.ones(4, device="cuda"), torch.ones(4).pin_memory()
        pinned.copy_(x, non_blocking=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            pinned.to("cuda", non_blocking=True)

    assert _code(run) == "M10"


def _wrapped_on_a_side_stream(rank: int) -> float:
    """What Lightning does: nothing orders the copies of DDP's broadcast before the first step."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
    torch.manual_seed(rank)
    module = torch.nn.Linear(4, 1).to("cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        model = torch.nn.parallel.DistributedDataParallel(module, device_ids=[rank])
    loss = model(torch.ones(2, 4, device="cuda")).sum()  # read
    loss.backward()
    return float(loss.item())


def test_a_race_of_a_library_is_listed_if_the_run_is_to_go_on() -> None:
    with pytest.raises(SpawnException, match=r"(?s)\[M10\].*--races warn goes on"):
        kernbench.torchrun_spawn(_wrapped_on_a_side_stream, nprocs=2)
    outcome = kernbench.torchrun_spawn(_wrapped_on_a_side_stream, nprocs=2, races="warn")
    assert outcome.returned[0] == outcome.returned[1]
    first = outcome.document["races"][0]
    assert (first["code"], first["ranks"]) == ("M10", [0, 1])
    assert "# read" in first["at"]
    assert "DistributedDataParallel(module" in first["issued"]
    assert first["what"] == "read a tensor before aten::copy_ on it was waited for"


def test_a_collective_that_is_read_too_early_is_listed_too() -> None:
    def early(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        _after_work(ordered=False)

    outcome = kernbench.torchrun_spawn(early, nprocs=2, races="warn")
    assert [each["code"] for each in outcome.document["races"]] == ["C15"]


def test_what_another_stream_has_waited_for_is_to_be_ordered() -> None:
    def run(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(x)
        x + 1

    with pytest.raises(SpawnException, match=r"(?s)\[C15\].*hint: order the streams with"):
        on_ranks(run, 2)
