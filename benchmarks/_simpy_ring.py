"""The ring all-reduce of kernbench's timing model, written as SimPy's own examples are.

Engines and links are `Resource`s, slots a `Store`, credits a `Container`, and everything that goes
on beside the rank's program (a load, a message, each hop of it) is a process. Only durations come
from kernbench: the order of things is written down here a second time.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy
from simpy.events import EventPriority

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Hop:
    """A stage of a message's way: its link, its latency, and what one piece costs on it."""

    link: int
    latency: int
    full: int
    head: int
    tail: int


@dataclass(frozen=True)
class Model:
    """Everything that takes time, in picoseconds; all pieces are of one size.

    Attributes:
        launch: Of the collective, before its first instruction.
        steps: Of each phase: ranks - 1.
        pieces: Messages a step.
        paths: Stages from each rank to the next one.
        credit_delays: Of a credit on its way back along each path.
        slots: Messages that may be under way or unread between two ranks.
    """

    launch: int
    steps: int
    pieces: int
    paths: Sequence[Sequence[Hop]]
    credit_delays: Sequence[int]
    slots: int
    issue: int
    port: int
    dma: int
    copy: int
    math: int
    memory_latency: int
    slot_latency: int


class Pe:
    """A rank's engines, and the queue through which it receives."""

    def __init__(self, env: simpy.Environment, slots: int) -> None:
        self.port = simpy.Resource(env)
        self.load = simpy.Resource(env)
        self.store = simpy.Resource(env)
        self.send = simpy.Resource(env)
        self.receive = simpy.Resource(env)
        self.math = simpy.Resource(env)
        self.inbox = simpy.Store(env)
        self.credits = simpy.Container(env, slots, init=slots)  # of the queue that it sends to
        self.end = 0


class Ring:
    """The ranks of one all-reduce."""

    def __init__(self, model: Model, starts: Sequence[int]) -> None:
        self.env = simpy.Environment()
        self.model = model
        self.pes = [Pe(self.env, model.slots) for _ in starts]
        links = {hop.link for path in model.paths for hop in path}
        self.links = {link: simpy.Resource(self.env) for link in links}
        for rank, start in enumerate(starts):
            self.env.process(self.program(rank, start))

    def run(self) -> list[int]:
        """Returns when each rank is done."""
        self.env.run()
        return [pe.end for pe in self.pes]

    def program(self, rank: int, start: int) -> Process:
        env, model, pe = self.env, self.model, self.pes[rank]
        before, credit_delay = self.pes[rank - 1], model.credit_delays[rank - 1]
        yield env.timeout(start + model.launch)
        messages = []
        ahead = min(model.slots - 1, model.pieces)  # sending runs ahead of receiving by so many
        for step in range(2 * model.steps):
            reduces = step < model.steps
            stores = []
            for turn in range(model.pieces + ahead):
                if turn < model.pieces:
                    yield env.timeout(model.issue)
                    ready = env.process(self.load(pe))
                    yield env.timeout(model.issue)
                    yield pe.credits.get(1)
                    messages.append(env.process(self.message(rank, ready)))
                if turn >= ahead:
                    if reduces:
                        yield env.timeout(model.issue)
                        local = env.process(self.load(pe))
                    yield env.timeout(model.issue)
                    yield pe.inbox.get()
                    value = env.process(self.receive(pe, before, credit_delay))
                    if reduces:
                        yield env.timeout(model.issue)
                        value = env.process(self.add(pe, local, value))
                    yield env.timeout(model.issue)
                    stores.append(env.process(self.store(pe, value)))
            yield env.all_of(stores)
        yield env.all_of(messages)
        pe.end = int(env.now)

    def hold(self, resource: simpy.Resource, duration: int) -> Process:
        with resource.request() as turn:
            yield turn
            yield self.env.timeout(duration)

    def load(self, pe: Pe) -> Process:
        through_port = self.env.process(self.hold(pe.port, self.model.port))
        with pe.load.request() as turn:
            yield turn
            yield self.env.timeout(self.model.dma)
            yield through_port
        yield self.env.timeout(self.model.memory_latency)

    def store(self, pe: Pe, value: simpy.Event) -> Process:
        through_port = self.env.process(self.hold(pe.port, self.model.port))
        with pe.store.request() as turn:
            yield turn
            yield value
            yield self.env.timeout(self.model.dma)
        yield through_port
        yield self.env.timeout(self.model.memory_latency)

    def add(self, pe: Pe, local: simpy.Event, value: simpy.Event) -> Process:
        with pe.math.request() as turn:
            yield turn
            yield local
            yield value
            yield self.env.timeout(self.model.math)

    def receive(self, pe: Pe, sender: Pe, credit_delay: int) -> Process:
        with pe.receive.request() as turn:
            yield turn
            yield self.env.timeout(self.model.copy)
        yield self.env.timeout(self.model.slot_latency)
        self.env.process(self.give_credit(sender, credit_delay))

    def give_credit(self, sender: Pe, delay: int) -> Process:
        yield self.env.timeout(delay)
        yield sender.credits.put(1)

    def message(self, rank: int, ready: simpy.Event) -> Process:
        """Ends when all of the message is in its first link; the rest of the way goes on."""
        pe, path = self.pes[rank], self.model.paths[rank]
        with pe.send.request() as turn:
            yield turn
            yield ready
            yield from self.hold_link(rank, 0, 0)
        if len(path) == 1:
            self.env.process(self.arrive(rank))

    def hold_link(self, rank: int, index: int, not_before: int) -> Process:
        """Holds one link for the message; the next hop begins once its head is through."""
        path = self.model.paths[rank]
        with self.links[path[index].link].request() as turn:
            yield turn
            end = max(int(self.env.now) + path[index].full, not_before)
            if index + 1 < len(path):
                self.env.process(self.next_hop(rank, index + 1, end))
            yield self.env.timeout(end - self.env.now)

    def next_hop(self, rank: int, index: int, before: int) -> Process:
        path = self.model.paths[rank]
        last, here = path[index - 1], path[index]
        yield self.env.timeout(last.head + last.latency)
        yield from self.hold_link(rank, index, before + last.latency + here.tail)
        if index + 1 == len(path):
            yield from self.arrive(rank)

    def arrive(self, rank: int) -> Process:
        yield self.env.timeout(self.model.paths[rank][-1].latency + self.model.slot_latency)
        yield self.pes[(rank + 1) % len(self.pes)].inbox.put(None)


class RingWithOrderedTies(Ring):
    """Serves whoever asks for a link at the same picosecond in the order of ranks."""

    def hold_link(self, rank: int, index: int, not_before: int) -> Process:
        # What else happens at this instant comes first; then the ranks, one after the other.
        turn = simpy.Event(self.env)
        turn._ok, turn._value = True, None
        self.env.schedule(turn, EventPriority(10 + rank))
        yield turn
        yield from super().hold_link(rank, index, not_before)
