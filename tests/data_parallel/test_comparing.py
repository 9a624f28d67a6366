"""Replicas that differ: the ranks, the parameter, and what the digests tell of the cause."""

from collections.abc import Callable

import pytest

from kernbench.data_parallel.comparing import Comparison, Replica
from kernbench.process.process import current_process
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.testing import Kernbench

NAMES = [f"w{number}" for number in range(10)]
Change = Callable[[Replica, dict[str, bytes]], None]


def _report(kernbench: Kernbench, kind: str, change: Change) -> str:
    """Returns what is said if rank 1 has something else than the others."""
    comparison = Comparison()

    def worker(rank: int) -> None:
        replica = Replica("Net", ("WORLD", 1), (0, 1, 2), {name: f"{name} [4]" for name in NAMES})
        values = dict.fromkeys(NAMES, b"1")
        replica.forwards, replica.gradients = 1, {"w0": b"g"}
        process = current_process()
        comparison.leave(process, replica, "made", "DistributedDataParallel()", dict(values))
        replica.steps = 1
        if rank == 1:
            change(replica, values)
        comparison.leave(process, replica, kind, "SGD.step() #1", values)

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=3)
    assert comparison.compared == 2
    comparison.begin()
    return str(caught.value)


def _value(_: Replica, values: dict[str, bytes]) -> None:
    values["w3"] = b"2"


def _uncalled(replica: Replica, values: dict[str, bytes]) -> None:
    values["w3"], replica.forwards = b"2", 0


def _gradients(replica: Replica, values: dict[str, bytes]) -> None:
    values["w3"], replica.gradients = b"2", {"w0": b"h"}


def _all(_: Replica, values: dict[str, bytes]) -> None:
    values.update(dict.fromkeys(NAMES, b"2"))


CAUSES: list[tuple[str, Change, str]] = [
    ("step", _value, "gradients were alike before the step"),
    ("step", _uncalled, "rank 1 did not call the DistributedDataParallel since the last step"),
    ("step", _gradients, "gradients differed before the step"),
    ("forward", _value, "since then rank 1 changed them, and the others did not"),
    ("made", _value, "init_sync=False"),
    ("step", _all, "and 2 more of 10 parameters"),
]


@pytest.mark.parametrize(("kind", "change", "cause"), CAUSES)
def test_the_cause_is_told(kernbench: Kernbench, kind: str, change: Change, cause: str) -> None:
    report = _report(kernbench, kind, change)
    assert "the replicas of Net on ranks 0-2 differ in w" in report
    assert "is one on ranks 0, 2, and another on rank 1" in report
    assert cause in report
