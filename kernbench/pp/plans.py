"""Who computes what, and when: schedules as lists of actions, made of numbers alone.

A schedule gives every forward and backward pass of a stage a slot, the same clock for all stages.
It is right if what a pass takes was made by a neighbour in an earlier slot. All else follows: a
stage goes through its slots, and after each one neighbours exchange what they made in it. So both
sides of a message are posted behind the same slot, in the same order, and nobody waits in a circle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from kernbench.caches import cached
from kernbench.errors import OptionError, call_site, site_fact


class Size(NamedTuple):
    """How large a pipeline and its step are.

    Attributes:
        stages: Ranks of the pipeline.
        chunks: Pieces of the model that a stage holds; chunk `c` of stage `s` is piece
            `c * stages + s` of the model.
        microbatches: Of a step.
    """

    stages: int
    chunks: int
    microbatches: int


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward pass of one chunk of a stage, for one microbatch."""

    chunk: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Backward:
    """A backward pass of one chunk of a stage, for one microbatch."""

    chunk: int
    microbatch: int


Pass: TypeAlias = Forward | Backward


class Message(NamedTuple):
    """An activation on its way to the next stage, or a gradient on its way to the previous one.

    Attributes:
        sender: Stage that made it.
        made_by: In which of its passes.
        receiver: Stage that takes it; the next one of the last stage is the first.
        taken_by: In which of its passes.
    """

    sender: int
    made_by: Pass
    receiver: int
    taken_by: Pass


@dataclass(frozen=True, slots=True)
class Exchange:
    """Messages that a stage sends and receives in one batch.

    Attributes:
        messages: In the order in which they are posted; between two stages it is the same on both.
    """

    messages: tuple[Message, ...]


Action: TypeAlias = Forward | Backward | Exchange
Slots: TypeAlias = list[tuple[int, Pass]]
Schedule: TypeAlias = Callable[[int, Size], Slots]
"""Returns the passes of a stage with their slots; in a slot, forward comes before backward."""


# Schedules


def forward_only(stage: int, size: Size) -> Slots:
    """Returns forward passes one after the other; each stage is a slot behind the previous one.

    Args:
        stage: Which stage.
        size: Of the pipeline.
    """
    steps = size.chunks * size.microbatches
    return [(step + stage, Forward(*_at(step, size))) for step in range(steps)]


def gpipe(stage: int, size: Size) -> Slots:
    """Returns all forward passes, then all backward passes in the same order (GPipe).

    Huang et al., "GPipe", 2019. A stage holds the activations of all microbatches.

    Args:
        stage: Which stage.
        size: Of the pipeline.
    """
    steps = size.chunks * size.microbatches
    turn = steps + 2 * (size.stages - 1) - stage
    return forward_only(stage, size) + _backwards(size, turn, 1)


def one_forward_one_backward(stage: int, size: Size) -> Slots:
    """Returns 1F1B: as soon as a stage can, it goes back once for every time that it goes forward.

    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021,
    section 2.2. A stage holds the activations of at most `stages - stage` microbatches.

    Args:
        stage: Which stage.
        size: Of the pipeline; of one chunk.
    """
    forwards: Slots = [(2 * k + stage, Forward(0, k)) for k in range(size.microbatches)]
    return forwards + _backwards(size, 2 * size.stages - 1 - stage, 2)


def interleaved(stage: int, size: Size) -> Slots:
    """Returns interleaved 1F1B: chunks take turns, each with as many microbatches as stages.

    The same paper, section 2.2, in the order of Megatron-Core: a stage goes forward
    `2 * (stages - 1 - stage) + (chunks - 1) * stages` times before it goes in turns.

    Args:
        stage: Which stage.
        size: Of the pipeline; its microbatches are a multiple of its stages.
    """
    turn = 2 * (size.stages - 1) - stage + (size.chunks - 1) * size.stages
    return forward_only(stage, size) + _backwards(size, turn, 1)


def _backwards(size: Size, first: int, apart: int) -> Slots:
    found: Slots = []
    for step in range(size.chunks * size.microbatches):
        chunk, microbatch = _at(step, size)
        found.append((first + apart * step, Backward(size.chunks - 1 - chunk, microbatch)))
    return found


def _at(step: int, size: Size) -> tuple[int, int]:
    """Returns the chunk and the microbatch of a forward pass by its number."""
    if size.chunks == 1:
        return 0, step
    group, within = divmod(step, size.stages * size.chunks)
    chunk, place = divmod(within, size.stages)
    return chunk, group * size.stages + place


# Plans


def check_size(size: Size) -> None:
    """Checks that a step can be cut as it is asked for.

    Args:
        size: Of the pipeline.

    Raises:
        OptionError: If a number is below 1, or stages hold several chunks and there is one stage
            or the microbatches are no multiple of the stages.
    """
    for name, number in zip(_NAMES, size, strict=True):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise OptionError(
                f"{name}={number!r}: expected an integer of at least 1", [site_fact(call_site())]
            )
    if size.chunks == 1:
        return
    if size.stages == 1:
        raise OptionError(
            f"{size.chunks} model chunks on 1 pipeline stage: interleaving needs at least 2 stages",
            [site_fact(call_site())],
            hint="pass the model whole, or set pipeline_model_parallel_size",
        )
    if size.microbatches % size.stages:
        raise OptionError(
            f"number of microbatches ({size.microbatches}) is not divisible by "
            f"pipeline-model-parallel-size ({size.stages}) when using interleaved schedule",
            [site_fact(call_site()), f"each stage holds {size.chunks} model chunks"],
            hint=f"num_microbatches={-(-size.microbatches // size.stages) * size.stages}",
        )


_NAMES: Final = ("pipeline_model_parallel_size", "number of model chunks", "num_microbatches")


@cached("pp.plans")
def plan(schedule: Schedule, stage: int, size: Size) -> tuple[Action, ...]:
    """Returns what a stage does in a step, in order.

    Batches that follow one another without a pass between them are one.

    Args:
        schedule: `forward_only`, `gpipe`, `one_forward_one_backward` or `interleaved`.
        stage: Which stage.
        size: Of the pipeline, see `check_size`.
    """
    exchanged: dict[int, list[Message]] = {}
    for sender in sorted({(stage - 1) % size.stages, stage, (stage + 1) % size.stages}):
        for slot, made_by in sorted(schedule(sender, size), key=_in_slot):
            message = message_of(sender, made_by, size)
            if message is not None and stage in (message.sender, message.receiver):
                exchanged.setdefault(slot, []).append(message)
    passes: dict[int, list[Pass]] = {}
    for slot, action in sorted(schedule(stage, size), key=_in_slot):
        passes.setdefault(slot, []).append(action)
    actions: list[Action] = []
    for slot in sorted({*passes, *exchanged}):
        actions.extend(passes.get(slot, ()))
        if slot in exchanged:
            before = actions[-1] if actions else None
            if isinstance(before, Exchange):
                actions.pop()
            earlier = before.messages if isinstance(before, Exchange) else ()
            actions.append(Exchange((*earlier, *exchanged[slot])))
    return tuple(actions)


def _in_slot(timed: tuple[int, Pass]) -> tuple[int, bool]:
    return timed[0], isinstance(timed[1], Backward)


def message_of(stage: int, made_by: Pass, size: Size) -> Message | None:
    """Returns the message with the result of a pass; None at an end of the model.

    Args:
        stage: Which stage made it.
        made_by: Which pass.
        size: Of the pipeline.
    """
    step = 1 if isinstance(made_by, Forward) else -1
    piece = made_by.chunk * size.stages + stage + step
    if not 0 <= piece < size.chunks * size.stages:
        return None
    chunk, receiver = divmod(piece, size.stages)
    return Message(stage, made_by, receiver, type(made_by)(chunk, made_by.microbatch))
