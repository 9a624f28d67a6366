"""What a mistake in a kernel says, word for word."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tl_machine import Machine, place

from kernbench import tl
from kernbench.errors import KernbenchError, NoDataError, UnsupportedError
from kernbench.memory import OutOfMemoryError, UninitialisedReadError, View, dtypes
from kernbench.tl import launch
from kernbench.tl.execution import KernelDeadlockError
from kernbench.tl.launch import DEFAULT_QUEUES, Kernel, LaunchError, jit
from kernbench.tl.operands import TileOperandError
from kernbench.tl.program import MessageSizeError, PeerError
from kernbench.topology import Topology
from kernbench.ttir.reports import OutOfBoundsError


@pytest.fixture
def machine(topology: Callable[[str], Topology]) -> Machine:
    return Machine(topology("sip8"))


def failure(
    kind: type[KernbenchError],
    machine: Machine,
    kernel: Kernel,
    grid: tuple[int, ...] = (1,),
    **arguments: Any,
) -> list[str]:
    """Returns the lines that a launch fails with, without the place of the launch itself."""
    with pytest.raises(kind) as caught:
        machine.launch(kernel, grid, **arguments)
    assert type(caught.value) is kind
    lines = str(caught.value).splitlines()
    issued = [n for n, line in enumerate(lines) if f"{kernel.name} was issued at" in line]
    assert len(issued) == 1
    del lines[issued[0]]
    return lines


# Launching (K1, K3), through a stand-in for the runtime


class Recorder:
    def __init__(self) -> None:
        self.launches: list[tuple[str, tuple[int, ...], dict[str, Any]]] = []

    def launch(self, kernel: Kernel, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        self.launches.append((kernel.name, grid, arguments))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(launch, "find_launcher", lambda: found)
    return found


@jit
def scale(x: Any, by: float = 2.0, *, block: tl.constexpr = 4) -> None:
    """Does nothing."""


def test_a_launch_binds_arguments_as_a_call_does(recorder: Recorder) -> None:
    scale[(3, 2)]("x", 1.5, block=8)
    scale[(5,)]("x")
    scale[lambda meta: (tl.cdiv(10, meta["block"]),)]("x", block=4)
    assert recorder.launches == [
        ("scale", (3, 2), {"x": "x", "by": 1.5, "block": 8}),
        ("scale", (5,), {"x": "x", "by": 2.0, "block": 4}),
        ("scale", (3,), {"x": "x", "by": 2.0, "block": 4}),
    ]
    assert (scale.name, scale.constants, scale.__doc__) == (
        "scale",
        frozenset({"block"}),
        "Does nothing.",
    )


@pytest.mark.parametrize("grid", [(), (0,), (-1, 2), (1, 2, 3, 4), (2.0,), (True,), ("2",)])
def test_k1_a_grid_has_one_to_three_positive_extents(
    recorder: Recorder, grid: tuple[Any, ...]
) -> None:
    with pytest.raises(LaunchError) as caught:
        scale[grid]("x")
    site = place(__file__, 'scale[grid]("x")')
    assert str(caught.value) == (
        f"[K1] kernel scale: a grid has one to three positive extents; got {grid}\n  at {site}"
    )
    assert recorder.launches == []


def test_k1_a_number_is_no_grid(recorder: Recorder) -> None:
    with pytest.raises(LaunchError) as caught:
        scale[5]("x")
    site = place(__file__, 'scale[5]("x")')
    assert str(caught.value) == (
        f"[K1] kernel scale: a grid is a tuple of extents; got 5\n  at {site}\n"
        "  hint: write scale[(5,)](...)"
    )
    assert recorder.launches == []


def test_k3_arguments_must_fit_the_signature(recorder: Recorder) -> None:
    with pytest.raises(LaunchError) as caught:
        scale[(1,)]()
    site = place(__file__, "scale[(1,)]()")
    assert str(caught.value) == "\n".join(
        [
            "[K3] kernel scale: missing a required argument: 'x'",
            f"  at {site}",
            "  signature: scale(x: Any, by: float = 2.0, *, block: tl.constexpr = 4) -> None",
        ]
    )
    with pytest.raises(LaunchError, match="got an unexpected keyword argument 'tile'"):
        scale[(1,)]("x", tile=4)
    assert recorder.launches == []


def test_k3_a_kernel_is_no_function(recorder: Recorder) -> None:
    with pytest.raises(LaunchError) as caught:
        scale("x")
    site = place(__file__, 'scale("x")')
    assert str(caught.value) == (
        f"[K3] kernel scale was called like a function\n  at {site}\n"
        "  hint: launch it on a grid: scale[(programs,)](...)"
    )


def test_a_launch_needs_a_running_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_launcher", lambda: None)
    with pytest.raises(UnsupportedError) as caught:
        scale[(2,)]("x")
    site = place(__file__, 'scale[(2,)]("x")')
    assert str(caught.value) == (
        f"kernel scale was launched outside of a running context\n  at {site}\n"
        "  hint: launch it from a worker, or inside `with RuntimeContext(...)`"
    )


def test_the_language_needs_a_kernel() -> None:
    with pytest.raises(UnsupportedError) as caught:
        tl.program_id(0)
    site = place(__file__, "tl.program_id(0)")
    assert str(caught.value) == (
        f"a function of kernbench.tl was called outside of a kernel\n  at {site}\n"
        "  hint: launch a @tl.jit function with kernel[grid](...)"
    )


# Memory (M1, M2, M5)


@jit
def read_beyond(x: Any, block: tl.constexpr) -> None:
    lanes = tl.program_id(0) * block + tl.arange(0, block)
    tl.load(x + lanes)


@jit
def write_beyond(x: Any, block: tl.constexpr) -> None:
    lanes = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + lanes - 3, 1.0, mask=lanes > 1)


def test_m1_reading_beyond_a_tensor_names_program_lanes_and_address(machine: Machine) -> None:
    machine.tensor(np.zeros(1000, np.float32), label="decoy")
    x = machine.tensor(np.zeros((3, 4), np.float32), label="zeros([3, 4], float32)")
    allocated = x.buffer.allocation
    assert allocated.site is not None
    assert failure(OutOfBoundsError, machine, read_beyond, (2, 2), x=x, block=8) == [
        "[M1] tl.load out of bounds of zeros([3, 4], float32)",
        f"  at {place(__file__, 'tl.load(x + lanes)')}",
        "  program (1, 0) of grid (2, 2)",
        "  shape (3, 4), strides (4, 1): valid offsets 0..11",
        f"  first bad offset 12 ({allocated.address + 48}); 4 of 8 lanes",
        f"  allocated at {allocated.site.show()}",
        "  hint: mask the lanes beyond the end: tl.load(ptr + offs, mask=offs < n)",
    ]


def test_m2_writing_before_a_tensor_leaves_its_neighbour_alone(machine: Machine) -> None:
    neighbour = machine.tensor(np.zeros(128, np.float32), label="neighbour")
    x = machine.tensor(np.zeros(8, np.float32), label="x")
    allocated = x.buffer.allocation
    assert allocated.site is not None
    assert failure(OutOfBoundsError, machine, write_beyond, x=x, block=8) == [
        "[M2] tl.store out of bounds of x",
        f"  at {place(__file__, 'tl.store(x + lanes - 3, 1.0, mask=lanes > 1)')}",
        "  program (0,) of grid (1,)",
        "  shape (8,), strides (1,): valid offsets 0..7",
        f"  first bad offset -1 ({allocated.address + -4}); 1 of 6 lanes",
        f"  allocated at {allocated.site.show()}",
        "  hint: mask the lanes beyond the end: tl.store(ptr + offs, value, mask=offs < n)",
    ]
    assert not neighbour.read().any()
    assert not x.read().any()


def test_bounds_are_those_of_the_view_not_of_its_memory(machine: Machine) -> None:
    base = machine.tensor(np.zeros(16, np.float32))
    half = View(base.buffer, base.dtype, (4,), (1,), 4)
    lines = failure(OutOfBoundsError, machine, read_beyond, x=half, block=8)
    assert lines[0] == "[M1] tl.load out of bounds of a view of x"
    assert lines[3:5] == [
        "  shape (4,), strides (1,): valid offsets 0..3",
        f"  first bad offset 4 ({base.buffer.allocation.address + 32}); 4 of 8 lanes",
    ]


def test_m5_reading_what_nobody_wrote(machine: Machine) -> None:
    x = machine.empty((8,), dtypes.float32, "empty([8], float32)")
    View(x.buffer, x.dtype, (3,), (1,), 0).write()[...] = 0
    allocated = x.buffer.allocation
    assert allocated.site is not None
    assert failure(UninitialisedReadError, machine, read_beyond, x=x, block=8) == [
        "[M5] tl.load read 5 of 8 elements of empty([8], float32) that were never written",
        f"  at {place(__file__, 'tl.load(x + lanes)')}",
        "  program (0,) of grid (1,)",
        f"  allocated at {allocated.site.show()}",
        "  nothing was issued that writes to it",
        "  hint: write them first, mask them, or make the tensor with zeros()",
    ]


# Operands (K2)


@pytest.mark.parametrize(
    ("body", "summary"),
    [
        (
            lambda: tl.dot(tl.zeros((4, 3)), tl.zeros((4, 3))),
            "[K2] tl.dot takes [m, k] and [k, n]; got [4, 3] and [4, 3]",
        ),
        (
            lambda: tl.dot(tl.zeros((4,)), tl.zeros((4, 3))),
            "[K2] tl.dot takes [m, k] and [k, n]; got [4] and [4, 3]",
        ),
        (
            lambda: tl.dot(tl.zeros((4, 4)), tl.zeros((4, 4), tl.float16)),
            "[K2] tl.dot takes two tiles of one floating-point type or int8; "
            "got torch.float32 and torch.float16",
        ),
        (
            lambda: tl.dot(tl.zeros((4, 4), tl.int32), tl.zeros((4, 4), tl.int32)),
            "[K2] tl.dot takes two tiles of one floating-point type or int8; "
            "got torch.int32 and torch.int32",
        ),
    ],
)
def test_k2_operands_that_no_engine_takes(
    machine: Machine, body: Callable[[], None], summary: str
) -> None:
    kernel = jit(body)
    assert failure(TileOperandError, machine, kernel)[0] == summary


@jit
def wide_store(x: Any) -> None:
    tl.store(x + tl.arange(0, 32), tl.load(x + tl.arange(0, 16)))


@jit
def narrow_store(x: Any) -> None:
    tl.store(x + 3, tl.load(x + tl.arange(0, 16)))


@jit
def uneven_sum(x: Any) -> None:
    tl.load(x + tl.arange(0, 16)) + tl.load(x + tl.arange(0, 8))


@jit
def uneven_index(x: Any) -> None:
    x + (tl.arange(0, 16) + tl.arange(0, 8))


@jit
def uneven_choice(x: Any) -> None:
    tl.where(tl.arange(0, 16) < 3, tl.arange(0, 8), 0)


@jit
def short_mask(x: Any) -> None:
    tl.load(x + tl.arange(0, 16), mask=tl.arange(0, 8) < 3)


@jit
def short_box(x: Any) -> None:
    (tl.arange(0, 16) < 3) & (tl.arange(0, 8) < 3)


@jit
def branch_on_a_tile(x: Any) -> None:
    if tl.load(x + tl.arange(0, 16)) > 3:
        tl.store(x + 0, 1.0)


@jit
def sliced(x: Any) -> None:
    tl.load(x + tl.arange(0, 16))[0]


@jit
def too_many_axes(x: Any) -> None:
    tl.load(x + tl.arange(0, 16))[:, :]


@jit
def wrong_axis(x: Any) -> None:
    tl.sum(tl.load(x + tl.arange(0, 16)), axis=1)


@jit
def wrong_size(x: Any) -> None:
    tl.reshape(tl.load(x + tl.arange(0, 16)), (3, 5))


@jit
def wrong_order(x: Any) -> None:
    tl.trans(tl.load(x + tl.arange(0, 16))[:, None], 0, 2)


@jit
def wide_acc(x: Any) -> None:
    tl.dot(tl.zeros((4, 4)), tl.zeros((4, 4)), tl.zeros((8, 4)))


@jit
def fractions(x: Any) -> None:
    tl.load(x + tl.arange(0, 16)) // 2


@jit
def no_number(x: Any, count: Any = None) -> None:
    tl.store(x + tl.arange(0, 16), 1.0, mask=tl.arange(0, 16) < count)


@jit
def no_value(x: Any, value: Any = None) -> None:
    tl.store(x, value)


APART = "these do not broadcast"


@pytest.mark.parametrize(
    ("kernel", "summary"),
    [
        (wide_store, f"tl.store with pointers and a value of shapes [32] and [16]: {APART}"),
        (narrow_store, "tl.store of a value of shape [16] to pointers of shape []"),
        (uneven_sum, f"add of tiles of shapes [16] and [8]: {APART}"),
        (uneven_index, f"add of tiles of shapes [16] and [8]: {APART}"),
        (uneven_choice, f"tl.where of tiles of shapes [16] and [8]: {APART}"),
        (short_mask, f"tl.load with pointers and a mask of shapes [16] and [8]: {APART}"),
        (short_box, f"bitwise_and of tiles of shapes [16] and [8]: {APART}"),
        (branch_on_a_tile, "a tile of shape [16] is not a single value"),
        (sliced, "a tile is indexed with None and ':' only; got 0"),
        (too_many_axes, "a tile of shape [16] was indexed with 2 times ':'"),
        (wrong_axis, "add along axis 1 of a tile of shape [16]"),
        (wrong_size, "tl.reshape of a tile of shape [16] to [3, 5]"),
        (wrong_order, "tl.trans of a tile of shape [16, 1] to axes [0, 2]"),
        (
            wide_acc,
            "tl.dot gives torch.float32 of shape [4, 4]; got an acc of torch.float32 of shape "
            "[8, 4]",
        ),
        (no_number, "expected a tile or a number; got NoneType"),
        (no_value, "expected a tile or a number; got NoneType"),
        (fractions, "'//' takes whole numbers; the common type is torch.float32"),
    ],
)
@pytest.mark.parametrize("data", [True, False])
def test_k2_shapes_that_do_not_fit(
    topology: Callable[[str], Topology], kernel: Kernel, summary: str, data: bool
) -> None:
    machine = Machine(topology("sip8"), data=data)
    x = machine.tensor(np.zeros(64, np.float32))
    lines = failure(TileOperandError, machine, kernel, x=x)
    assert lines[0] == f"[K2] {summary}"
    code = kernel.function.__code__
    first = code.co_firstlineno + 1
    assert any(f"  at {__file__}:{first + 1}:" in line for line in lines)


# Messages (K7, K9, P9)


@jit
def all_send_first(x: Any, rounds: int) -> None:
    rank, count = tl.program_id(0), tl.num_programs(0)
    tile = tl.load(x + tl.arange(0, 8))
    for _ in range(rounds):
        tl.send(tile, (rank + 1) % count)
    for _ in range(rounds):
        tl.recv((rank + count - 1) % count)


def test_k7_programs_that_wait_for_each_other(machine: Machine) -> None:
    x = machine.tensor(np.zeros(8, np.float32))
    machine.launch(all_send_first, (3,), x=x, rounds=4)  # as many as there are slots
    line = place(__file__, "tl.send(tile, (rank + 1) % count)")
    assert failure(KernelDeadlockError, machine, all_send_first, (3,), x=x, rounds=5) == [
        "[K7] the programs of all_send_first wait for each other",
        f"  all_send_first on PE 0 waits for a credit for the queue to 1, at {line}",
        f"  all_send_first on PE 1 waits for a credit for the queue to 2, at {line}",
        f"  all_send_first on PE 2 waits for a credit for the queue to 0, at {line}",
        "  queue 0->1 full 4/4",
        "  queue 1->2 full 4/4",
        "  queue 2->0 full 4/4",
        "  hint: 4 messages fit in a queue: receive before the next tl.send; n_slots=5 is the "
        "least that completes",
    ]


def test_k7_no_number_of_slots_is_enough(machine: Machine) -> None:
    x = machine.tensor(np.zeros(8, np.float32))
    assert failure(KernelDeadlockError, machine, all_send_first, (3,), x=x, rounds=65)[-1] == (
        "  hint: 4 messages fit in a queue: receive before the next tl.send; no n_slots up to 64 "
        "that fits into memory completes"
    )


def test_k7_programs_that_need_values_or_print_are_not_run_again(machine: Machine) -> None:
    @jit
    def decide(x: Any) -> None:
        other = 1 - tl.program_id(0)
        for _ in range(5):
            tl.send(tl.load(x), other)
        if tl.load(x) == 0:
            for _ in range(5):
                tl.recv(other)

    x = machine.tensor(np.zeros(8, np.float32))
    assert failure(KernelDeadlockError, machine, decide, (2,), x=x)[-1] == (
        "  hint: 4 messages fit in a queue: receive before the next tl.send"
    )


def test_more_slots_let_the_same_programs_through(topology: Callable[[str], Topology]) -> None:
    machine = Machine(topology("sip8"), queues=replace(DEFAULT_QUEUES, n_slots=5))
    machine.launch(all_send_first, (3,), x=machine.tensor(np.zeros(8, np.float32)), rounds=5)


def test_k7_a_receive_without_a_send(machine: Machine) -> None:
    @jit
    def listen() -> None:
        if tl.program_id(0) == 1:
            tl.recv(0)

    assert failure(KernelDeadlockError, machine, listen, (2,))[1:] == [
        f"  listen on PE 1 waits for a message from 0, at {place(__file__, 'tl.recv(0)')}",
        "  hint: every tl.recv needs a tl.send by the program that it names",
    ]


def test_a_program_that_fails_is_named_rather_than_those_that_wait_for_it(machine: Machine) -> None:
    @jit
    def broken(x: Any) -> None:
        if tl.program_id(0) == 1:
            tl.load(x + 100)
        tl.recv(1)

    x = machine.tensor(np.zeros(8, np.float32))
    lines = failure(OutOfBoundsError, machine, broken, (3,), x=x)
    assert lines[2] == "  program (1,) of grid (3,)"


@jit
def send_all(x: Any, count: int) -> None:
    tl.send(tl.load(x + tl.arange(0, count)), 1)


def test_k9_a_message_larger_than_a_slot(machine: Machine) -> None:
    x = machine.tensor(np.zeros(2048, np.float32))
    assert failure(MessageSizeError, machine, send_all, (2,), x=x, count=1025) == [
        "[K9] tl.send of 4100 B to 1: a slot holds 4096 B",
        f"  at {place(__file__, 'tl.send(tl.load(x + tl.arange(0, count)), 1)')}",
        "  tile of shape (1025,), torch.float32",
        "  slots between programs are of this size",
        "  hint: send smaller tiles",
    ]


@pytest.mark.parametrize("peer", [-1, 2, 40])
def test_p9_a_peer_that_does_not_exist(machine: Machine, peer: int) -> None:
    @jit
    def speak() -> None:
        tl.send(tl.zeros((4,)), peer)

    @jit
    def listen() -> None:
        tl.recv(peer)

    hint = "  hint: a kernel runs on one device: ranks exchange data through torch.distributed"
    if peer < 0:
        hint = "  hint: a remainder has the sign of the dividend, as in C: (i + n - 1) % n"
    assert failure(PeerError, machine, speak, (2,)) == [
        f"[P9] tl.send to {peer}: there is no such program",
        f"  at {place(__file__, 'tl.send(tl.zeros((4,)), peer)')}",
        "  peers are the programs of this launch, 0..1",
        hint,
    ]
    assert failure(PeerError, Machine(machine.engine.topology), listen, (2,)) == [
        f"[P9] tl.recv from {peer}: there is no such program",
        f"  at {place(__file__, 'tl.recv(peer)')}",
        "  peers are the programs of this launch, 0..1",
        hint,
    ]


@pytest.mark.parametrize(
    ("call", "said", "hint"),
    [
        ("tl.recv()", "tl.recv() missing 1 required", "the call is tl.recv(source)"),
        ("tl.recv(0, (4,), tl.float32)", "tl.recv() takes 1 pos", "the call is tl.recv(source)"),
        ("tl.send(tl.arange(0, 4))", "tl.send() missing 1 req", "the call is tl.send(tile, to)"),
        ("tl.send(tl.arange(0, 4), 1.0)", "tl.send: a peer is a whole number; got 1.0", "number"),
        ("tl.recv('a')", "tl.recv: a peer is a whole number; got 'a'", "number the peers as"),
        ("tl.load()", "tl.load() missing 1 required", "the call is tl.load(pointer, mask=None"),
    ],
)
def test_k2_a_call_of_the_language_that_it_does_not_have(
    machine: Machine, call: str, said: str, hint: str, tmp_path: Path
) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(f"from kernbench import tl\n@tl.jit(portable=False)\ndef k():\n    {call}\n")
    names: dict[str, Any] = {"__name__": "a_kernel"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    first, where, *_, last = failure(TileOperandError, machine, names["k"], (1,))
    assert first.startswith(f"[K2] {said}")
    assert where == f"  at {file}:4:5: {call}"
    assert last.startswith(f"  hint: {hint}")


def test_programs_that_share_a_pe_cannot_talk(machine: Machine) -> None:
    @jit
    def speak() -> None:
        tl.send(tl.zeros((4,)), 0)

    assert failure(UnsupportedError, machine, speak, (33,)) == [
        "tl.send and tl.recv need a kernel whose programs have PEs of their own",
        f"  at {place(__file__, 'tl.send(tl.zeros((4,)), 0)')}",
        "  hint: launch at most as many programs as the device has PEs",
    ]


# What a fault does to what follows


def test_a_bug_in_a_kernel_is_raised_as_it_is_at_the_next_wait(machine: Machine) -> None:
    @jit
    def buggy() -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        machine.launch(buggy)


@pytest.mark.parametrize("data", [True, False])
def test_after_a_fault_later_launches_of_the_stream_do_nothing(
    topology: Callable[[str], Topology], data: bool
) -> None:
    machine = Machine(topology("sip8"), data=data)
    ran: list[int] = []

    @jit
    def fine(x: Any) -> None:
        ran.append(1)
        tl.store(x + 0, 5.0)

    x = machine.tensor(np.zeros(4, np.float32))
    failure(OutOfBoundsError, machine, read_beyond, x=x, block=8)
    assert machine.launch(fine, x=x) == 0
    assert ran == []


def test_loaded_values_decide_nothing_while_data_is_off(
    topology: Callable[[str], Topology],
) -> None:
    machine = Machine(topology("sip8"), data=False)

    @jit
    def branch(x: Any) -> None:
        if tl.load(x + 0) > 0:
            tl.store(x + 1, 1.0)

    assert failure(NoDataError, machine, branch, x=machine.tensor(np.zeros(4, np.float32))) == [
        "control flow of a kernel asks for a loaded value while data is off",
        f"  at {place(__file__, 'if tl.load(x + 0) > 0:').replace(':9:', ':12:')}",
        "  hint: run with --data on",
    ]


def test_m8_a_tile_larger_than_the_tcm(machine: Machine) -> None:
    x = machine.tensor(np.zeros(4, np.float32))

    @tl.jit
    def large(x: tl.Pointer) -> None:
        block = tl.zeros((1 << 20,))
        tl.store(x, tl.sum(block))

    line = place(__file__, "block = tl.zeros((1 << 20,))")
    spot = line.replace(":9: ", ":17: ")  # the call, not the assignment
    assert failure(OutOfMemoryError, machine, large, (1,), x=x) == [
        "[M8] tl.full: a tile of shape (1048576,) does not fit into the TCM of its PE",
        f"  at {spot}",
        "  it takes 4 MiB (torch.float32) of 1 MiB",
        "  hint: use smaller blocks",
    ]
