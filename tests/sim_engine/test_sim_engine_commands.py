"""The life of a command: order, one effect at completion, eager or through the loop alike."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.des import DeadlockError, Event
from kernbench.errors import KernbenchError, call_site
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.data_executor import DataExecutor, EffectError
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.sim_engine.host import Host
from kernbench.sim_engine.op_log import OpLog, Record, Total
from kernbench.sim_engine.shadow import ShadowError
from kernbench.topology import Topology

Effect = Callable[[], None]


@pytest.fixture(scope="session")
def machine(topology: Callable[[str], Topology]) -> Topology:
    return topology("sip8")


@pytest.fixture
def engine(machine: Topology) -> GraphEngine:
    return GraphEngine(machine, record="full")


def host_of(engine: GraphEngine, rank: int = 0, clock: int = 0, queue: int = 1024) -> Host:
    return Host(engine.loop, rank, engine.rank_owner(rank), clock, queue)


class Later:
    """Action whose end becomes known only when the loop gets there, as behind a shared resource."""

    def __init__(self, engine: GraphEngine, duration: int, effect: Effect | None) -> None:
        self._engine, self._duration, self._effect = engine, duration, effect

    def begin(self, command: Command, start: int) -> None:
        engine, end = self._engine, start + self._duration
        owner = engine.command_owner(command.host.rank)
        engine.loop.at(end, owner, engine.complete, command, start, end, self._effect)


# Random programs


@dataclass(frozen=True)
class Op:
    stream: int
    issued: int  # after the one before it of the same stream's host
    duration: int
    after: tuple[int, ...]  # earlier commands
    late: bool  # whether its end is known only later


@st.composite
def dags(draw: st.DrawFn) -> list[Op]:
    ops: list[Op] = []
    for number in range(draw(st.integers(1, 14))):
        known = st.integers(0, number - 1)
        after = draw(st.lists(known, max_size=3, unique=True)) if number else []
        ops.append(
            Op(
                draw(st.integers(0, 3)),
                draw(st.integers(0, 5)),
                draw(st.integers(0, 9)),
                tuple(after),
                draw(st.booleans()),
            )
        )
    return ops


def run(machine: Topology, ops: Sequence[Op], mode: str) -> tuple[list[int | None], list[int]]:
    """Returns when each command ended, and the order in which effects were applied."""
    engine = GraphEngine(machine)
    streams = [Stream(f"s{n}", n % 2) for n in range(4)]
    hosts = [host_of(engine, rank) for rank in range(4)]
    commands: list[Command] = []
    applied: list[int] = []
    for number, op in enumerate(ops):
        host = hosts[op.stream]
        host.clock += op.issued
        effect = partial(applied.append, number)
        late = op.late if mode == "mixed" else mode == "late"
        work = (
            Later(engine, op.duration, effect) if late else Hold(engine, None, op.duration, effect)
        )
        stream = streams[op.stream]
        stream.waits.extend(commands[n].done for n in op.after)
        command = Command(f"op {number}", "compute", host, stream, work)
        commands.append(command)
        engine.submit(command)
    engine.loop.run()
    return [command.done.time for command in commands], applied


def longest_path(ops: Sequence[Op]) -> list[int]:
    """Ends by the definition: issued, behind its stream, behind what it waits for."""
    clocks, tails, ends = [0] * 4, [0] * 4, list[int]()
    for op in ops:
        clocks[op.stream] += op.issued
        start = max([clocks[op.stream], tails[op.stream], *(ends[n] for n in op.after)])
        ends.append(start + op.duration)
        tails[op.stream] = ends[-1]
    return ends


@given(ops=dags())
def test_commands_end_when_the_longest_path_says_eagerly_or_not(
    machine: Topology, ops: list[Op]
) -> None:
    expected = longest_path(ops)
    for mode in ("eager", "late", "mixed"):
        ends, applied = run(machine, ops, mode)
        assert ends == expected
        assert sorted(applied) == list(range(len(ops)))  # each effect exactly once
        place = {number: index for index, number in enumerate(applied)}
        for number, op in enumerate(ops):
            before = [n for n in range(number) if ops[n].stream == op.stream]
            assert all(place[n] < place[number] for n in (*before, *op.after))
        if mode == "late":
            assert [expected[n] for n in applied] == sorted(expected)


@given(
    requests=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=7),
    rng=st.randoms(use_true_random=False),
)
def test_a_shared_resource_serves_by_time_and_rank_whatever_the_order_of_issue(
    machine: Topology, requests: list[tuple[int, int]], rng: random.Random
) -> None:
    engine = GraphEngine(machine)
    device = engine.devices[0]
    device.share(engine.loop)
    ends: dict[int, Event] = {}
    order = list(range(len(requests)))
    rng.shuffle(order)
    for rank in order:
        clock, duration = requests[rank]
        work = Hold(engine, device.compute, duration, None)
        command = Command("op", "compute", host_of(engine, rank, clock), Stream("s", 0), work)
        ends[rank] = command.done
        engine.submit(command)
    engine.loop.run()
    free, expected = 0, {}
    for clock, rank in sorted((clock, rank) for rank, (clock, _) in enumerate(requests)):
        free = max(free, clock) + requests[rank][1]
        expected[rank] = free
    assert {rank: done.time for rank, done in ends.items()} == expected


def test_latency_delays_the_completion_but_not_the_resource(engine: GraphEngine) -> None:
    device, host, stream = engine.devices[0], host_of(engine), Stream("s", 0)
    done = []
    for _ in range(2):
        command = Command(
            "copy", "copy", host, stream, Hold(engine, device.to_device, 100, None, latency=30)
        )
        engine.submit(command)
        done.append(command.done.time)
    assert done == [130, 260]  # the second begins when the first is complete: one stream
    assert device.to_device.free == 230
    spans = [(record.start, record.end) for record in engine.op_log.records]
    assert spans == [(0, 130), (130, 260)]


def test_thousands_of_commands_that_wait_in_a_chain_do_not_overflow(engine: GraphEngine) -> None:
    gate, host = Event("gate"), host_of(engine, queue=1 << 20)
    streams = [Stream("a", 0), Stream("b", 0)]
    streams[0].waits.append(gate)
    previous: Command | None = None
    order: list[int] = []
    for number in range(5000):
        stream = streams[number % 2]
        if previous is not None:
            stream.waits.append(previous.done)
        effect = partial(order.append, number)
        previous = Command("op", "compute", host, stream, Hold(engine, None, 1, effect))
        engine.submit(previous)
    assert order == []
    gate.settle(7)
    assert previous is not None
    assert previous.done.time == 7 + 5000
    assert order == list(range(5000))


# Faults


class BrokenError(KernbenchError):
    """Stands for a fault of the device."""


def breaking(error: Exception) -> Effect:
    def effect() -> None:
        raise error

    return effect


@pytest.mark.parametrize("kind", [Hold, Later])
def test_a_fault_stops_its_stream_and_is_reported_once_with_the_place_of_issue(
    engine: GraphEngine, kind: type
) -> None:
    host, stream, other = host_of(engine), Stream("s", 0), Stream("t", 0)
    applied: list[str] = []

    def issue(name: str, on: Stream, effect: Effect) -> Command:
        work = Hold(engine, None, 10, effect) if kind is Hold else Later(engine, 10, effect)
        command = Command(name, "compute", host, on, work, site=call_site())
        engine.submit(command)
        return command

    issue("fine", stream, lambda: applied.append("fine"))
    bad = issue(
        "aten::add", stream, breaking(BrokenError("memory is broken", ["fact"], hint="mend"))
    )
    issue("worse", stream, breaking(BrokenError("second")))
    skipped = issue("skipped", stream, lambda: applied.append("skipped"))
    issue("elsewhere", other, lambda: applied.append("elsewhere"))
    engine.loop.run()
    assert sorted(applied) == ["elsewhere", "fine"]
    assert (stream.faulted, other.faulted, skipped.done.time) == (True, False, 40)
    assert bad.site is not None
    with pytest.raises(BrokenError) as caught:
        host.wait(skipped.done)
    assert str(caught.value) == (
        f"memory is broken\n  fact\n  aten::add was issued at {bad.site.show()}\n  hint: mend"
    )
    assert "call_site()" in bad.site.source
    host.wait(skipped.done)  # reported once
    assert host.clock == 40
    assert host.faults == []


def test_any_error_of_an_effect_is_a_fault_of_its_command(engine: GraphEngine) -> None:
    host, stream = host_of(engine), Stream("s", 0)
    work = Hold(engine, None, 1, breaking(ZeroDivisionError("division by zero")))
    command = Command("aten::op", "compute", host, stream, work, call_site())
    engine.submit(command)
    engine.loop.run()
    assert (stream.faulted, command.done.time) == (True, 1)
    with pytest.raises(EffectError) as caught:
        host.wait(command.done)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    text = "the computation failed: ZeroDivisionError: division by zero\n  aten::op was issued at "
    assert str(caught.value).startswith(text)


def test_a_cache_that_is_wrong_stops_the_run(engine: GraphEngine) -> None:
    host, stream = host_of(engine), Stream("s", 0)
    work = Hold(engine, None, 1, breaking(ShadowError("the cache is wrong")))
    with pytest.raises(ShadowError):
        engine.submit(Command("op", "compute", host, stream, work))
    assert host.faults == []


def test_the_first_fault_of_a_host_is_the_one_that_counts(engine: GraphEngine) -> None:
    host = host_of(engine)
    for number in range(2):
        work = Hold(engine, None, 1, breaking(BrokenError(f"fault {number}")))
        engine.submit(Command("op", "compute", host, Stream(f"s{number}", 0), work))
    with pytest.raises(BrokenError, match="fault 0"):
        host.raise_fault()
    host.raise_fault()


# Hosts


def test_the_host_waits_for_the_oldest_command_when_the_launch_queue_is_full(
    engine: GraphEngine,
) -> None:
    host, stream, clocks = host_of(engine, queue=3), Stream("s", 0), list[int]()
    for _ in range(6):
        host.clock += 1
        engine.submit(Command("op", "compute", host, stream, Hold(engine, None, 100, None)))
        clocks.append(host.clock)
    assert clocks == [1, 2, 3, 101, 201, 301]
    assert host.waited == 97 + 99 + 99


def test_main_drives_the_loop_and_a_worker_parks(engine: GraphEngine) -> None:
    main, worker = host_of(engine, -1), host_of(engine, 0)
    event, seen = Event("news"), list[str]()
    engine.loop.at(50, engine.loop.owner(1), event.settle, 80)

    def rank() -> None:
        worker.wait(event)
        seen.append(f"worker at {worker.clock}")

    worker.task = engine.loop.start(rank, owner=worker.owner, name="rank 0")
    main.wait(event)
    assert seen == ["worker at 80"]
    assert (main.clock, main.waited, worker.waited) == (80, 80, 80)


def test_main_cannot_wait_for_what_never_happens(engine: GraphEngine) -> None:
    with pytest.raises(DeadlockError):
        host_of(engine, -1).wait(Event())


def test_a_poll_sees_what_others_have_done_by_then(engine: GraphEngine) -> None:
    event, seen = Event(), list[tuple[int, bool]]()
    engine.loop.at(50, engine.loop.owner(1), event.settle, 50)
    host = host_of(engine, 0)

    def rank() -> None:
        for _ in range(3):
            host.poll(25)
            seen.append((host.clock, event.time is not None))

    host.task = engine.loop.start(rank, owner=host.owner, name="rank 0")
    engine.loop.run()
    assert seen == [(25, False), (50, True), (75, True)]
    main = host_of(engine, -1, clock=90)
    later = Event()
    engine.loop.at(90, engine.loop.owner(1), later.settle, 90)
    main.poll(0)
    assert later.time == 90
    assert main.clock == 91  # a look is never free, or a loop of looks would not end


# Streams


def test_what_a_stream_knows_of_others_only_grows() -> None:
    a, b, c = Stream("a", 0), Stream("b", 0), Stream("c", 0)
    c.learn({a: 3, b: 1})
    c.learn({a: 2, b: 5})
    assert c.seen == {a: 3, b: 5}


def test_a_command_takes_what_its_stream_waits_for(engine: GraphEngine) -> None:
    host, stream, event = host_of(engine), Stream("s", 0), Event()
    stream.waits.append(event)
    first, second = (
        Command("op", "compute", host, stream, Hold(engine, None, 1, None)) for _ in range(2)
    )
    assert (list(first.after), list(second.after)) == ([event], [])
    assert (first.number, second.number, stream.count) == (1, 2, 2)


# Dials


@pytest.mark.parametrize("detail", ["full", "summary", "none"])
def test_the_log_keeps_what_its_dial_says(machine: Topology, detail: str) -> None:
    assert detail in {"full", "summary", "none"}
    engine = GraphEngine(machine, record=detail)  # type: ignore[arg-type]
    host, stream, where = host_of(engine, 2, clock=5), Stream("s", 0), call_site()
    for duration in (10, 20):
        work = Hold(engine, None, duration, None)
        command = Command("op", "compute", host, stream, work, site=where, args={"bytes": 8})
        engine.submit(command)
    log = engine.op_log
    records = [
        Record("op", "compute", 2, "s", 5, begin, end, where, {"bytes": 8})
        for begin, end in ((5, 15), (15, 35))
    ]
    assert log.records == (records if detail == "full" else [])
    assert log.totals == ({} if detail == "none" else {(2, "compute"): Total(2, 30)})


def test_flows_are_numbered_from_one() -> None:
    log = OpLog("full")
    assert [log.new_flow(), log.new_flow()] == [1, 2]


@pytest.mark.parametrize("enabled", [True, False])
def test_effects_happen_only_with_data(enabled: bool) -> None:
    executor, seen = DataExecutor(enabled=enabled), list[int]()
    executor.apply(None)
    executor.apply(lambda: seen.append(1))
    assert (seen, executor.applied) == (([1], 1) if enabled else ([], 0))


def test_data_off_takes_the_same_time(machine: Topology) -> None:
    ends = []
    for data in (True, False):
        engine = GraphEngine(machine, data)
        command = Command(
            "op", "compute", host_of(engine), Stream("s", 0), Hold(engine, None, 9, lambda: None)
        )
        engine.submit(command)
        ends.append(command.done.time)
        assert engine.executor.applied == int(data)
    assert ends == [9, 9]


def test_functional_takes_no_time(machine: Topology) -> None:
    engine = GraphEngine(machine, fidelity="functional")
    host, stream, seen = host_of(engine), Stream("s", 0), list[int]()
    work = Hold(engine, engine.devices[0].compute, 100, lambda: seen.append(1), latency=50)
    command = Command("op", "compute", host, stream, work)
    engine.submit(command)
    assert (command.done.time, seen, engine.dispatch_ps) == (0, [1], 0)


def test_ranks_come_in_order_and_main_first(engine: GraphEngine) -> None:
    keys = [engine.rank_owner(rank).key for rank in (-1, 0, 1, 1023)]
    commands = [engine.command_owner(rank).key for rank in (-1, 0, 1, 1023)]
    assert keys == sorted(set(keys))
    assert commands == sorted(set(commands))
    assert max(keys) < min(commands)
    assert engine.devices[3] is engine.devices[3]
