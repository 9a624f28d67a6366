"""One run of a case: its result, what it begins with, and what it may not leave behind."""

import contextlib
import decimal
import gc
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.distributed import comm_debug
from kernbench.distributed.comm_debug import CommDebugMode
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing.cases import CaseRequest, dist_case
from kernbench.testing.configs import register_config
from kernbench.testing.results import CaseResult
from kernbench.testing.running import run_case, stacks

CONFIG = register_config({"tile": [64]})
KEPT: list[Any] = []
WAKE = threading.Event()


@dist_case
def kb_ends(ctx: RuntimeContext, rank: int, how: dict[str, str]) -> object:
    """Ends on some ranks in a way of its own."""
    dist.init_process_group("nccl")
    x = torch.full((4,), float(rank), device="cuda")
    dist.all_reduce(x)
    return ENDS[how.get(str(rank), "returns")](x)


def _fails(x: torch.Tensor) -> None:
    assert x.sum().item() == 0.0, "not zero"


def _raises(kind: type[BaseException], *args: object) -> Callable[[torch.Tensor], None]:
    def end(x: torch.Tensor) -> None:
        raise kind(*args)

    return end


def _deadlocks(x: torch.Tensor) -> None:
    dist.barrier()


ENDS: dict[str, Callable[[torch.Tensor], object]] = {
    "returns": lambda x: None,
    "fails": _fails,
    "raises": _raises(ValueError, "wrong\nand more"),
    "exits 3": _raises(SystemExit, 3),
    "exits 0": _raises(SystemExit, 0),
    "skips": lambda x: pytest.skip("not today"),
    "skips as unittest": _raises(unittest.SkipTest, "nor then"),
    "xfails": lambda x: pytest.xfail("known"),
    "fails by pytest": lambda x: pytest.fail("on purpose"),
    "exits pytest": lambda x: pytest.exit("enough"),
    "interrupts": _raises(KeyboardInterrupt),
    "waits": _deadlocks,
    "is a generator": lambda x: (each for each in range(1)),
}


def run(case: str, ranks: int = 2, **fields: Any) -> CaseResult:
    own = {name: fields.pop(name) for name in list(fields) if name in CaseRequest.__slots__}
    request = CaseRequest(
        nodeid="test.py::test", case=case, module=__name__, file=__file__, world_size=ranks,
        kwargs=fields, **{"seed": 1234, **own},
    )  # fmt: skip
    return run_case(request)


def ended(ranks: int = 4, **how: str) -> CaseResult:
    return run("kb_ends", ranks, how={name[1:]: value for name, value in how.items()})


def test_a_case_that_passes() -> None:
    result = ended()
    assert result.ok
    assert result == replace(
        CaseResult(nodeid="test.py::test", ok=True, worker_pid=os.getpid()),
        wall_s=result.wall_s,
        sim_ps=result.sim_ps,
    )
    assert result.wall_s > 0
    assert result.sim_ps > 1_000_000
    assert result.sim_s == result.sim_ps / 1e12
    assert ended(r1="exits 0").ok


def test_a_rank_that_exits_well_is_looked_at_too() -> None:
    assert run("kb_exits_with_a_group").leaks[0].startswith("process group G1{0-1}, held by rank 1")


@dist_case
def kb_exits_with_a_group(ctx: RuntimeContext, rank: int) -> None:
    dist.init_process_group("nccl")
    group = dist.new_group([0, 1])
    if rank == 1:
        sys.exit()
    dist.destroy_process_group(group)


def test_the_first_rank_that_failed_reports() -> None:
    result = ended(r1="raises", r2="fails by pytest", r3="raises")
    assert not result.ok
    # Rank 1 fails at once; the others had failed in the same instant.
    assert result.ranks_failed[0] == 1
    first, *rest = result.error.splitlines()
    assert first == "[Rank 1] ValueError: wrong"
    assert rest[0] == "and more"
    assert rest[1] == "Traceback of your code (most recent call last):"
    assert __file__ in result.error
    assert "kernbench/ranks" not in result.error


def test_other_ranks_give_their_last_lines() -> None:
    result = run("kb_both_fail", 4)
    assert result.ranks_failed == (0, 1, 2, 3)
    assert result.error.startswith("[Rank 0] ValueError: of rank 0\n")
    assert result.error.endswith(
        "\n[Rank 1] ValueError: of rank 1\n[Ranks 2-3] KeyError: 'of others'"
    )


@dist_case
def kb_both_fail(ctx: RuntimeContext, rank: int) -> None:
    try:
        dist.init_process_group("nccl")
        dist.barrier()
        if rank == 0:
            raise ValueError("of rank 0")
        torch.cuda.synchronize()
        time.monotonic()
        dist.barrier()
    except SystemExit:
        if rank == 1:
            raise ValueError("of rank 1") from None
        raise KeyError("of others") from None


def test_a_deadlock_is_an_ordinary_failure() -> None:
    result = ended(r0="waits")
    assert result.ranks_failed == (0,)
    assert "barrier" in result.error
    assert result.error.splitlines()[-1].startswith("explain: kernbench explain ")


@pytest.mark.parametrize(
    ("how", "ending", "reason"),
    [
        ("skips", "skip", "not today"),
        ("skips as unittest", "skip", "nor then"),
        ("xfails", "xfail", "known"),
        ("exits pytest", "exit", "enough"),
    ],
)
def test_what_a_rank_asks_pytest_for(how: str, ending: str, reason: str) -> None:
    result = ended(r2=how)
    assert (result.ok, result.ending, result.reason) == (True, ending, reason)
    assert (result.error, result.ranks_failed) == ("", ())


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("exits 3", "[Rank 2] SystemExit: 3"),
        ("fails by pytest", "[Rank 2] Failed: on purpose"),
        ("fails", "[Rank 2] AssertionError: not zero"),
        ("is a generator", "[Rank 2] KernbenchError: the worker of rank 2 is a generator"),
    ],
)
def test_failures(how: str, line: str) -> None:
    result = ended(r2=how)
    assert (result.ok, result.ending, result.ranks_failed) == (False, "", (2,))
    assert result.error.startswith(line)


def test_a_failure_wins_over_a_skip() -> None:
    result = run("kb_skip_and_fail")
    assert (result.ok, result.ending, result.ranks_failed) == (False, "", (1,))


@dist_case
def kb_skip_and_fail(ctx: RuntimeContext, rank: int) -> None:
    try:
        dist.init_process_group("nccl")
        if rank == 0:
            pytest.skip("not today")
        dist.barrier()
    except SystemExit:
        raise ValueError("clean-up") from None


def test_an_interrupt_is_one_of_the_test() -> None:
    result = ended(r1="interrupts")
    assert (result.ok, result.ending) == (False, "interrupt")


def test_an_unknown_case_is_a_failure() -> None:
    assert "no case is called 'kb_nope'" in run("kb_nope").error


def test_limits() -> None:
    assert "[K10]" in run("kb_ends", how={}, max_time_ps=10).error
    assert "[K5]" in run("kb_spins", 1, watchdog_s=0.05).error


@dist_case
def kb_spins(ctx: RuntimeContext, rank: int) -> None:
    while True:
        pass


@dist_case
def kb_looks(ctx: RuntimeContext, rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        KEPT.append(stacks())
    dist.barrier()


def test_stacks_say_where_each_rank_is() -> None:
    KEPT.clear()
    assert run("kb_looks").ok
    told = KEPT.pop().splitlines()
    line = kb_looks.__code__.co_firstlineno + 5
    assert told == [
        "rank 0: barrier",
        f'  File "{__file__}", line {line}, in kb_looks',
        "    dist.barrier()",
        "rank 1: not waiting",  # its stack is that of the thread
    ]
    assert stacks() == ""


# What a case begins with


@dist_case
def kb_draws(ctx: RuntimeContext, rank: int) -> None:
    KEPT.append(
        (
            random.random(),
            float(np.random.random()),
            float(np.random.standard_normal()),
            torch.rand(1).item(),
            torch.rand(1, device="cuda").item(),
        )
    )


def drawn(**fields: Any) -> list[Any]:
    KEPT.clear()
    assert run("kb_draws", **fields).ok
    return list(KEPT)


def test_cases_draw_the_same_numbers_and_leave_those_of_the_test() -> None:
    random.seed(1)
    np.random.seed(1)
    np.random.standard_normal()  # numpy has drawn two, and keeps one
    before = random.getstate(), repr(np.random.get_state())
    first = drawn()
    assert (random.getstate(), repr(np.random.get_state())) == before
    random.random()
    assert drawn() == first
    assert drawn(seed=5) == drawn(seed=5) != first
    assert first[0][3:] != first[1][3:]  # each rank has streams of its own
    random.seed(1234)
    np.random.seed(1234)
    assert first[0][:2] == (random.random(), np.random.random())


@dist_case
def kb_environment(ctx: RuntimeContext, rank: int) -> None:
    KEPT.append(dict(os.environ))


def test_a_case_has_the_environment_that_its_request_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KB_A", "a")
    monkeypatch.setenv("KB_B", "b")
    before = dict(os.environ)
    KEPT.clear()
    assert run("kb_environment", 1, env={"KB_A": None, "KB_C": "c"}).ok
    assert dict(os.environ) == before
    seen = KEPT.pop()
    assert (seen.get("KB_A"), seen["KB_B"], seen["KB_C"]) == (None, "b", "c")
    assert seen["PYTEST_CURRENT_TEST"] == "test.py::test (call)"
    request = CaseRequest(
        nodeid="t",
        case="kb_environment",
        module="",
        file="",
        world_size=1,
        seed=0,
        env={"KB_C": "c"},
    )
    assert run_case(request, {"KB_X": "x"}).ok
    assert dict(os.environ) == before
    assert KEPT.pop() == {"KB_X": "x", "KB_C": "c", "PYTEST_CURRENT_TEST": "t (call)"}


@dist_case
def kb_meddles(ctx: RuntimeContext, rank: int) -> None:
    assert CONFIG == {"tile": [64]}
    CONFIG["tile"].append(1)
    os.chdir("/")
    sys.path.append("/nowhere")
    sys.argv = ["x"]
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)
    warnings.simplefilter("ignore")
    logging.root.setLevel(7)
    logging.root.addHandler(logging.NullHandler())
    signal.signal(signal.SIGALRM, lambda *_: None)
    decimal.getcontext().prec = 3
    np.seterr(all="raise")
    np.set_printoptions(precision=1)
    gc.disable()
    sys.displayhook = print
    if "torch" in sys.modules:
        sys.modules["torch"] = torch
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.set_grad_enabled(False)


def test_what_a_process_has_one_of_is_put_back() -> None:
    def now() -> list[object]:
        return [
            os.getcwd(), list(sys.path), sys.argv, sys.getrecursionlimit(), list(warnings.filters),
            logging.root.level, list(logging.root.handlers), signal.getsignal(signal.SIGALRM),
            decimal.getcontext().prec, np.geterr(), np.get_printoptions(), gc.isenabled(),
            sys.displayhook, sys.modules.get("torch"), CONFIG["tile"],
        ]  # fmt: skip

    CONFIG["tile"].append(2)  # of a test: no case sees it, as none in another process would
    before = now()
    result = run("kb_meddles", 1)
    assert (result.error, result.leaks) == ("", ())
    assert now() == before
    del CONFIG["tile"][1:]
    assert run("kb_default_type", 1).ok


@dist_case
def kb_default_type(ctx: RuntimeContext, rank: int) -> None:
    assert torch.ones(1).dtype == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.is_grad_enabled()


@dist_case
def kb_warns(ctx: RuntimeContext, rank: int) -> None:
    warnings.warn(f"of rank {rank}", RuntimeWarning, stacklevel=1)


def test_warnings_are_told_or_raised_by_the_filters_of_the_request() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = run("kb_warns")
        assert result.ok
        assert [each.text for each in result.warnings] == ["of rank 0", "of rank 1"]
        assert {each.category for each in result.warnings} == {"builtins:RuntimeWarning"}
        with pytest.warns(RuntimeWarning, match="of rank 1") as caught:
            result.warnings[1].again()
        assert caught[0].filename == __file__
    assert "RuntimeWarning: of rank 0" in run("kb_warns").error
    ignored = [["ignore", "of rank", "builtins:RuntimeWarning", "", 0]]
    result = run("kb_warns", filters=ignored)
    assert (result.ok, result.warnings) == (True, ())


# What it leaves behind


def _thread() -> None:
    threading.Thread(target=_waits, name="mine", daemon=True).start()


def _waits() -> None:
    WAKE.wait(60)


def _environment() -> None:
    setter = threading.Thread(target=lambda: os.environ.update(KB_LEAK="1"))
    setter.start()
    setter.join()


def _descriptor() -> None:
    KEPT.append(os.open(os.devnull, os.O_RDONLY))


def _process() -> None:
    KEPT.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))


def _zombie() -> None:
    KEPT.append(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}))


def _forked() -> None:
    KEPT.append(os.fork())


LEAKS: dict[str, tuple[Callable[[], object], list[str]]] = {
    "group": (
        lambda: dist.new_group([0, 1]),
        ["process group G1{0-1}, held by ranks 0-1, made at HERE"],
    ),
    "memory": (
        lambda: KEPT.append({"deep": [torch.ones(4, device="cuda")]}),
        [
            "16 B of device memory on sip0.hbm: tensor [4] torch.float32, made at HERE",
            "16 B of device memory on sip1.hbm: tensor [4] torch.float32, made at HERE",
        ],
    ),
    "range": (
        lambda: torch.cuda.nvtx.range_push("step"),
        ["range 'step' not ended by ranks 0-1, begun at HERE"],
    ),
    "record": (
        lambda: KEPT.append(torch.profiler.record_function("part").__enter__()),
        ["range 'part' not ended by ranks 0-1, begun at HERE"],
    ),
    "profiler": (
        lambda: torch.profiler.profile().start(),
        ["profiler not ended by ranks 0-1, begun at HERE"],
    ),
    "mode": (lambda: CommDebugMode().__enter__(), ["2 CommDebugMode entered and not left"]),
    "thread": (
        _thread,
        ["daemon thread mine, which runs test_running._waits (HERE), now at HERE"] * 2,
    ),
    "environment": (_environment, ["environment variable KB_LEAK: was None, is '1'"]),
    "policy": (
        lambda: np.random.set_bit_generator(np.random.PCG64()),  # type: ignore[attr-defined]
        ["policy of random numbers: numpy drew from MT19937, draws from PCG64"],
    ),
    "descriptor": (_descriptor, [f"file descriptor N, open on {os.devnull}"] * 2),
}


@dist_case
def kb_leaks(ctx: RuntimeContext, rank: int, what: str) -> None:
    dist.init_process_group("nccl")
    LEAKS[what][0]()


@pytest.mark.parametrize("what", LEAKS)
def test_what_is_left_is_named_with_its_place(what: str) -> None:
    KEPT.clear()
    result = run("kb_leaks", what=what)
    for each in KEPT:
        if isinstance(each, int):
            os.close(each)
    KEPT.clear()
    WAKE.set()
    WAKE.clear()
    assert not result.ok
    assert result.ranks_failed == ()
    assert len(result.leaks) == len(LEAKS[what][1]), result.leaks
    for leak, expected in zip(result.leaks, LEAKS[what][1], strict=True):
        start, here, _ = expected.partition("HERE")
        assert leak.startswith(start.partition("N,")[0])
        if here:
            line = LEAKS[what][0].__code__.co_firstlineno
            places = [int(each) for each in re.findall(rf"{__file__}:(\d+)", leak)]
            assert places
            assert all(abs(place - line) < 8 for place in places)
        assert f"\n  {leak}" in result.error
    assert result.error.startswith("the case has passed, and left ")
    # Nothing of it is left for the next case.
    assert run("kb_ends", how={}).ok
    assert comm_debug.EVERYWHERE == []


def test_a_tensor_names_the_module_that_holds_it() -> None:
    KEPT.clear()
    leaks = run("kb_leaks", what="memory").leaks
    KEPT.clear()
    assert all(leak.endswith(f", held by {__name__}.KEPT") for leak in leaks)


class Stranger:
    """An object of somebody else's that runs code when asked for its class."""

    def __init__(self) -> None:
        self.itself = self  # so that the search for garbage knows it

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


class Lazy(ModuleType):
    """A module that is loaded when asked for anything."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


def test_the_search_for_a_holder_runs_no_code_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Stranger()
    monkeypatch.setitem(sys.modules, "kb_stranger", stranger)
    monkeypatch.setitem(sys.modules, "kb_lazy", Lazy("kb_lazy"))
    test_a_tensor_names_the_module_that_holds_it()
    assert any(each is stranger for each in gc.get_objects())


@pytest.mark.parametrize(
    ("start", "told"),
    [(_process, "child process {}: "), (_zombie, "child process {}, which has ended and was not")],
)
def test_a_child_process_is_named(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[], None], told: str
) -> None:
    KEPT.clear()
    monkeypatch.setitem(LEAKS, "child", (start, []))
    result = run("kb_leaks", 1, what="child")
    child = KEPT.pop()
    pid = child if isinstance(child, int) else child.pid
    if isinstance(child, int):
        os.waitpid(child, 0)
    else:
        child.communicate(b"\n")
    assert result.leaks[0].startswith(told.format(pid))


def test_a_child_that_comes_back_ends() -> None:
    KEPT.clear()
    here = os.getpid()
    LEAKS["fork"] = (_forked, [])
    try:
        result = run("kb_leaks", 1, what="fork")
    finally:
        del LEAKS["fork"]
    assert os.getpid() == here
    assert os.waitpid(KEPT.pop(), 0)[1] == 0
    assert "which has ended and was not waited for" in result.leaks[0]


def test_what_only_holds_itself_is_no_leak() -> None:
    assert run("kb_cycle").ok


@dist_case
def kb_cycle(ctx: RuntimeContext, rank: int) -> None:
    cycle: list[Any] = [torch.ones(4, device="cuda"), open(os.devnull)]  # noqa: SIM115
    cycle[1].close()
    cycle.append(cycle)


def test_a_failed_case_tells_its_leaks_beside_its_error() -> None:
    result = run("kb_leaves_and_fails", 1)
    os.close(KEPT.pop())
    assert result.ranks_failed == (0,)
    assert result.error.startswith("[Rank 0] ValueError")
    assert len(result.leaks) == 1


@dist_case
def kb_leaves_and_fails(ctx: RuntimeContext, rank: int) -> None:
    _descriptor()
    raise ValueError("of the case")


def test_a_rank_that_catches_its_abort_leaves_its_stack() -> None:
    result = run("kb_swallows")
    assert result.ranks_failed == (0, 1)
    assert result.error.splitlines()[-2].startswith("[Rank 1] AbortSwallowedError: ")
    assert result.leaks[0].startswith("1 stacks of ranks that caught their abort")


@dist_case
def kb_swallows(ctx: RuntimeContext, rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 0:
        raise ValueError("of rank 0")
    while True:
        with contextlib.suppress(BaseException):
            dist.barrier()


def test_leaks_may_be_told_only_or_not_looked_for() -> None:
    told = run("kb_leaks", what="group", leaks="warn")
    assert told.ok
    assert len(told.leaks) == 1
    silent = run("kb_leaks", what="group", leaks="off")
    assert (silent.ok, silent.leaks) == (True, ())


def test_a_hundred_cases_keep_nothing() -> None:
    def sizes() -> tuple[int, int]:
        gc.collect()
        return len(gc.get_objects()), sum(type(o) is RuntimeContext for o in gc.get_objects())

    for _ in range(3):
        ended()
    objects, contexts = sizes()
    for _ in range(100):
        ended()
    more, left = sizes()
    assert left == contexts
    assert more - objects < 100  # less than one object a case


# The property


@dist_case
def kb_mixed(ctx: RuntimeContext, rank: int, kind: int) -> None:
    dist.init_process_group("nccl")
    x = torch.rand(8, device="cuda") + random.random() + float(np.random.random())
    dist.all_reduce(x)
    if kind == 1:
        group = dist.new_group([0, 1])
        dist.all_gather_into_tensor(torch.empty(16, device="cuda"), x, group=group)
        dist.destroy_process_group(group)
    if kind == 2:
        dist.new_group([0, 1])
    if kind == 3:
        warnings.warn("careful", RuntimeWarning, stacklevel=1)
        CONFIG["tile"].append(rank)
    if kind == 4:
        assert x.sum().item() == 0.0
    if kind == 5:
        torch.nn.Linear(8, 8).cuda()(x).sum().backward()
    print(rank, x.sum().item(), CONFIG)


def outcome(kind: int) -> dict[str, Any]:
    filters = [["default", "", "builtins:Warning", "", 0]]
    result = run("kb_mixed", 2, kind=kind, filters=filters)
    return replace(result, wall_s=0.0).to_json()


KINDS = range(6)


@pytest.fixture(scope="module")
def alone() -> list[dict[str, Any]]:
    return [outcome(kind) for kind in KINDS]


@settings(max_examples=examples(15), deadline=None)
@given(order=st.lists(st.sampled_from(KINDS), min_size=2, max_size=8))
def test_cases_in_any_order_or_twice_give_the_same(
    alone: list[dict[str, Any]], order: list[int]
) -> None:
    assert [outcome(kind) for kind in order] == [alone[kind] for kind in order]


def test_a_result_crosses_as_plain_values() -> None:
    filters = [["default", "", "builtins:Warning", "", 0]]
    for result in (run("kb_mixed", kind=3, filters=filters), ended(r1="fails"), ended(r1="skips")):
        document = json.loads(json.dumps(result.to_json()))
        assert CaseResult.from_json({**document, "id": 1, "v": 1}) == result
        assert document["sim_s"] == result.sim_s
