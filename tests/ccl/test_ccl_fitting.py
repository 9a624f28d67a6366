"""Algorithms of one's own that are wrong: the report names ranks, and lines of the algorithm."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import passed_over
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.scripts.failures import describe
from kernbench.testing import Kernbench

RANKS = 4

HEAD = """\
from kernbench.ccl import NOTHING
def all_reduce(comm):
    n, r = comm.world_size, comm.rank
    left, right = (r - 1) % n, (r + 1) % n
"""

STUCK = f"[K7] the exchanges of all_reduce between {RANKS} ranks wait for each other for ever"
MISFIT = f"the exchanges of all_reduce between {RANKS} ranks do not fit together"

Told = Callable[[str], list[str]]


@pytest.fixture(params=["kernel", "tile"])
def told(
    request: pytest.FixtureRequest,
    kernbench: Kernbench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Told:
    """Returns a function that runs an algorithm, and returns the lines of its report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("ccl.yaml").write_text("defaults: {algorithm: mine}\nalgorithms: {mine: {module: mine}}\n")

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(64, device="cuda")
        dist.all_reduce(x)
        x.tolist()

    def run(body: str) -> list[str]:
        Path("mine.py").write_text(HEAD + body)
        with passed_over("pytest", "_pytest", "pluggy"), pytest.raises(SpawnException) as caught:
            kernbench.spawn(worker, nprocs=RANKS, ccl=tmp_path / "ccl.yaml", fidelity=request.param)
        text = describe(caught.value).replace(f"{tmp_path}/", "")
        return [line.strip() for line in text.splitlines()]

    return run


def test_all_ranks_wait_for_the_left_one_that_waits_itself(told: Told) -> None:
    line = 'comm.exchange(send=c, to=left, receive=c, source=left, combine="reduce")'
    found = told(f"    for c in range(n):\n        {line}\n")
    assert f"AlgorithmError: {STUCK}" in found
    for rank in range(RANKS):
        left, before = (rank - 1) % RANKS, (rank - 2) % RANKS
        assert (
            f"rank {rank} waits for a message from rank {left}, which waits for rank {before}, "
            f"at mine.py:6:9: {line}"
        ) in found


@pytest.mark.parametrize(
    ("before", "line", "column"),
    [
        ("if r == 2: return\n    ", "comm.exchange(send=0, to=right, receive=0, source=left)", 5),
        (
            "for s in range(n - 1 - (r == 2)):\n        ",
            "comm.exchange(send=(r - s) % n, to=right, receive=(r - s - 1) % n, source=left)",
            9,
        ),
    ],
    ids=["leaves at once", "a turn fewer"],
)
def test_a_rank_that_ends_before_its_partners_is_named_first(
    told: Told, before: str, line: str, column: int
) -> None:
    found = told(f"    {before}{line}\n")
    first = found.index(f"AlgorithmError: {STUCK}") + 1
    place = f"at mine.py:6:{column}: {line}"
    assert found[first : first + 2] == [
        f"rank 3 waits for a message from rank 2, which has ended, {place}",
        f"rank 1 sends what rank 2 never receives, {place}",
    ]


def test_the_line_is_that_of_the_exchange_that_has_no_partner(told: Told) -> None:
    found = told(
        "    comm.exchange(send=0, to=right, receive=0, source=left)\n"
        "    comm.exchange(send=NOTHING, to=0, receive=NOTHING, source=0)\n"
        "    if r == 1: comm.exchange(send=1, to=right, receive=NOTHING, source=left)\n"
    )
    first = found.index(f"AlgorithmError: {MISFIT}") + 1
    assert found[first] == (
        "rank 1 sends what rank 2 never receives, at mine.py:7:16: "
        "if r == 1: comm.exchange(send=1, to=right, receive=NOTHING, source=left)"
    )
    assert found[first + 1].startswith("hint: every send needs a receive at the other rank")


def test_messages_of_another_span(told: Told) -> None:
    line = "comm.exchange(send=NOTHING, to=right, receive=1, source=left)"
    found = told(
        f"    comm.exchange(send=1, to=right, receive=NOTHING, source=left, span=2)\n    {line}\n"
    )
    assert f"AlgorithmError: {MISFIT}" in found
    assert f"rank 3 receives span=1 of rank 2, which sent 2, at mine.py:6:5: {line}" in found


RECEIVES: Final = "to= another rank; or a chunk to receive from the rank itself, too"
SENDS: Final = "source= another rank; or a chunk to send to the rank itself, too"
MOVES: Final = "receive= another place for the chunk that the rank moves"


@pytest.mark.parametrize(
    ("arguments", "broken"),
    [
        ("send=0, to=r, receive=0, source=left", RECEIVES),
        ("send=0, to=r, receive=0, source=r", MOVES),
        ("send=0, to=r, receive=NOTHING, source=r", RECEIVES),
        ("send=0, to=right, receive=0, source=r", SENDS),
    ],
)
def test_an_exchange_with_oneself_that_moves_nothing(
    told: Told, arguments: str, broken: str
) -> None:
    found = told(f"    comm.exchange({arguments}, combine='reduce')\n")
    assert f"at mine.py:5:5: comm.exchange({arguments}, combine='reduce')" in found
    (line,) = [line for line in found if "exchange: expected" in line]
    assert f"exchange: expected {broken}" in line
    assert [rule for rule in (RECEIVES, SENDS, MOVES) if rule in line] == [broken]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            "comm.exchange(0, r ^ 1)",
            "TypeError: comm.exchange() takes 1 positional argument but 3 were given",
        ),
        (
            "comm.exchang(send=0)",
            "AttributeError: comm has no exchang; did you mean `exchange`?",
        ),
        (
            "comm.barrier",
            "AttributeError: comm has no barrier; it has buffer, channel, cut, exchange, grid, "
            "messages, rank, root, tl, world_size",
        ),
    ],
)
def test_errors_of_python_know_the_public_names(told: Told, body: str, error: str) -> None:
    found = told(f"    {body}\n")
    assert error in found
    assert 'File "mine.py", line 5, in all_reduce' in found
