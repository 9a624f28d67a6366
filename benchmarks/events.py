"""What an event, a wait and a task cost, against SimPy and against a bare greenlet."""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import _measure
import simpy
from greenlet import getcurrent, greenlet

from kernbench.des import EventLoop, Fifo, Task
from kernbench.des.carrier import CarrierPool

PROGRAMS = 64
WAITS = 500
IN_FLIGHT = 8
FRESH = 500
REPEATS = 5


def best(function: Callable[[], object], count: int) -> float:
    """Returns nanoseconds for each of `count` things that a call does."""
    return min(_measure.seconds(function) for _ in range(REPEATS)) / count * 1e9


def delay(program: int) -> int:
    return 1000 + program  # all different: programs take turns in a changing order


def simpy_timeouts(programs: int, waits: int) -> None:
    env = simpy.Environment()

    def body(program: int) -> Generator[simpy.Event, Any, None]:
        for _ in range(waits):
            yield env.timeout(delay(program))

    for program in range(programs):
        env.process(body(program))
    env.run()


def kernbench_timeouts(programs: int, waits: int) -> None:
    loop = EventLoop()

    def body(program: int) -> None:
        task = loop.current
        assert task is not None
        for _ in range(waits):
            task.clock += delay(program)
            task.synchronize()

    start(loop, body, programs)
    loop.run()


def kernbench_callbacks(programs: int, waits: int) -> None:
    loop = EventLoop()
    owners = [loop.owner(program) for program in range(programs)]

    def again(program: int, left: int) -> None:
        if left:
            loop.at(loop.now + delay(program), owners[program], again, program, left - 1)

    for program in range(programs):
        again(program, waits)
    loop.run()


def simpy_in_flight() -> None:
    """Every program keeps `IN_FLIGHT` operations on a resource of its own, and awaits the last."""
    env = simpy.Environment()

    def operation(resource: simpy.Resource, program: int) -> Generator[simpy.Event, Any, None]:
        with resource.request() as turn:
            yield turn
            yield env.timeout(delay(program))

    def body(program: int) -> Generator[simpy.Event, Any, None]:
        resource = simpy.Resource(env)
        for _ in range(WAITS // IN_FLIGHT):
            last = [env.process(operation(resource, program)) for _ in range(IN_FLIGHT)][-1]
            yield last

    for program in range(PROGRAMS):
        env.process(body(program))
    env.run()


def kernbench_in_flight() -> None:
    """The same with reservations; the program enters the loop for each last one."""
    loop = EventLoop()

    def body(program: int) -> None:
        task, resource = loop.current, Fifo()
        assert task is not None
        for _ in range(WAITS // IN_FLIGHT):
            for _ in range(IN_FLIGHT):
                done = resource.reserve(task.clock, delay(program))
            task.clock = done
            task.synchronize()

    start(loop, body, PROGRAMS)
    loop.run()


def start(loop: EventLoop, body: Callable[[int], None], programs: int) -> list[Task]:
    return [
        loop.start(body, program, owner=loop.owner(program), name=f"program {program}")
        for program in range(programs)
    ]


def round_trips(programs: int, waits: int) -> None:
    hub = getcurrent()

    def body() -> None:
        for _ in range(waits):
            hub.switch()

    stacks = [greenlet(body) for _ in range(programs)]
    for _ in range(waits):
        for stack in stacks:
            stack.switch()


def jobs(pools: list[CarrierPool]) -> None:
    """Runs an empty job on a stack of each pool."""
    for pool in pools:
        carrier = pool.take()
        carrier.begin(nothing, None)
        carrier.resume()
        pool.give_back(carrier)


def nothing() -> None:
    pass


def fresh_job() -> float:
    # The stacks stay alive until after the clock is stopped.
    times = []
    for _ in range(REPEATS):
        pools = [CarrierPool() for _ in range(FRESH)]
        times.append(_measure.seconds(partial(jobs, pools)))
    return min(times) / FRESH * 1e9


def main() -> None:
    many = PROGRAMS * WAITS
    simpy_wait = best(lambda: simpy_timeouts(PROGRAMS, WAITS), many)
    simpy_alone = best(lambda: simpy_timeouts(1, many), many)
    trip = best(lambda: round_trips(PROGRAMS, WAITS), many)
    wait = best(lambda: kernbench_timeouts(PROGRAMS, WAITS), many)
    inline = best(lambda: kernbench_timeouts(1, many), many)
    callback = best(lambda: kernbench_callbacks(PROGRAMS, WAITS), many)
    operations = PROGRAMS * (WAITS // IN_FLIGHT) * IN_FLIGHT
    simpy_operation = best(simpy_in_flight, operations)
    operation = best(kernbench_in_flight, operations)
    fresh = fresh_job()
    one_pool = [CarrierPool()] * many
    pooled = best(lambda: jobs(one_pool), many)

    def faster(name: str, peer: float, ours: float, target: float) -> list[object]:
        verdict = _measure.verdict(peer / ours, target, at_least=True)
        return [name, f"{peer:.0f}", f"{ours:.0f}", f"{peer / ours:.2f}x", verdict]

    def at_most(name: str, limit: float, ours: float, target: float) -> list[object]:
        verdict = _measure.verdict(ours / limit, target, at_least=False)
        return [name, f"{limit:.0f}", f"{ours:.0f}", f"{ours / limit:.2f}x", verdict]

    _measure.show(
        f"Events, {PROGRAMS} programs; a passive callback takes {callback:.0f} ns, "
        f"{1e9 / callback:,.0f} events a second",
        ["nanoseconds each", "peer or limit", "kernbench", "ratio", "target"],
        [
            faster("timeout, over SimPy's", simpy_wait, wait, 0.6),
            faster("the same, one program: inline", simpy_alone, inline, 5),
            faster(
                f"{IN_FLIGHT} operations in flight, over SimPy's", simpy_operation, operation, 15
            ),
            at_most("timed wait, over a bare greenlet's round trip", trip, wait, 3.5),
            at_most("inline advance, over a bare round trip", trip, inline, 0.3),
            faster("empty job on a pooled stack, over a fresh one", fresh, pooled, 5),
        ],
    )


if __name__ == "__main__":
    main()
