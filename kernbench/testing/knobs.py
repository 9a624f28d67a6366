"""Settings of a session of tests: options, and environment variables `KERNBENCH_...`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import pytest

from kernbench.testing.options import PREFIX, SEED, VARIABLES, Mode
from kernbench.triton import TIME_VARIABLE

if TYPE_CHECKING:
    from typing import Self

Leaks = Literal["fail", "warn", "off"]
"""What a leak of a case is: a failure, a warning, or nothing that is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Settings of a session of tests.

    Attributes:
        mode: Where cases run: `--kb-mode`, else `KERNBENCH_TEST_MODE`.
        seed: Where random generators start in each case: `--kb-seed`.
        machine: Machine of cases that name none: `--kb-machine`; None for that of `RunSpec`.
        batch_size: Most cases of a batch: `KERNBENCH_TEST_BATCH_SIZE`.
        batch_retry: Whether cases that a batch leaves without a result run again one by one:
            `KERNBENCH_TEST_BATCH_RETRY`.
        pool_timeout_s: Seconds of wall time that a case may take in a worker process:
            `KERNBENCH_POOL_TIMEOUT_SEC`.
        max_time_ps: Simulated picoseconds that a case may take; 0 for no limit:
            `KERNBENCH_SIM_TIMEOUT`.
        pool_timing: Whether a line tells the times of each case: `KERNBENCH_POOL_TIMING`.
        leaks: What a leak is: `KERNBENCH_LEAKS`.
        essential: Whether tests marked `kb_extended` are deselected: `KERNBENCH_TEST_ESSENTIAL`.
        max_procs: Most worker processes at a time, which the processes of pytest-xdist share; None
            for no limit: `KERNBENCH_MAX_PROCS`.
    """

    mode: Mode = "inline"
    seed: int = SEED
    machine: str | None = None
    batch_size: int = 16
    batch_retry: bool = True
    pool_timeout_s: float = 90.0
    max_time_ps: int = 0
    pool_timing: bool = False
    leaks: Leaks = "fail"
    essential: bool = True
    max_procs: int | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], config: pytest.Config) -> "Self":
        """Returns what the environment and the options of a session say; options win.

        Args:
            environ: The environment.
            config: The configuration of pytest.

        Raises:
            pytest.UsageError: If a variable with our prefix is unknown, or a value cannot be used;
                the error lists everything.
        """
        own = {*config.getini(VARIABLES), TIME_VARIABLE}
        given: dict[str, Any] = {}
        wrong = []
        for name in sorted(name for name in environ if name.startswith(PREFIX)):
            if name in own:
                continue
            if name not in _READ:
                wrong.append(_unknown(name, own))
                continue
            field, expected, read = _READ[name]
            try:
                value = read(environ[name].strip())
            except ValueError as error:
                why = f" ({error})" if isinstance(error, _RefusedError) else ""
                wrong.append(f"{name}: expected {expected}, got {environ[name]!r}{why}")
            else:
                given[field] = value
        if wrong:
            raise pytest.UsageError("kernbench: " + "\n  ".join(wrong))
        for field, option in _OPTIONS.items():
            value = config.getoption(option)
            if value is not None:
                given[field] = value
        given.pop("reuse_groups", None)
        if "machine" in given:
            _check_machine(given["machine"])
        return cls(**given)


def _check_machine(machine: str) -> None:
    """Checks that a machine can be made, before the first test.

    Raises:
        pytest.UsageError: If it cannot.
    """
    from kernbench.errors import UsageError
    from kernbench.topology import load_topology

    try:
        load_topology(machine)
    except UsageError as error:
        raise pytest.UsageError(f"kernbench: --kb-machine={machine}: {error}") from None


_OPTIONS: Final = {"mode": "kb_mode", "seed": "kb_seed", "machine": "kb_machine"}


class _RefusedError(ValueError):
    """A value that is understood, and not offered."""


def _unknown(name: str, own: set[str]) -> str:
    from kernbench.config.near import nearest

    near = nearest(name, [*_READ, *own])
    meant = f"did you mean {near}?" if near else f"the known ones are {', '.join(_READ)}"
    return f"{name}: no such variable; {meant} A variable of your own goes into {VARIABLES}"


def _choice(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in values:
            raise ValueError
        return text

    return read


def _flag(text: str) -> bool:
    return _choice("0", "1")(text) == "1"


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _simulated(text: str) -> int:
    from kernbench.units import parse_time

    value = parse_time(text)
    if value < 0:
        raise ValueError
    return value


def _no_reuse(text: str) -> bool:
    if _flag(text):
        raise _RefusedError(
            "each case has a world of its own, which costs milliseconds: groups are not kept"
        )
    return False


_FLAG: Final = "0 or 1"

_READ: Final[Mapping[str, tuple[str, str, Callable[[str], object]]]] = {
    "KERNBENCH_TEST_MODE": ("mode", ", ".join(get_args(Mode)), _choice(*get_args(Mode))),
    "KERNBENCH_TEST_BATCH_SIZE": ("batch_size", "an integer from 1", _whole),
    "KERNBENCH_TEST_BATCH_RETRY": ("batch_retry", _FLAG, _flag),
    "KERNBENCH_POOL_TIMEOUT_SEC": ("pool_timeout_s", "seconds above 0", _seconds),
    "KERNBENCH_SIM_TIMEOUT": ("max_time_ps", "a time with its unit, such as 10ms", _simulated),
    "KERNBENCH_POOL_TIMING": ("pool_timing", _FLAG, _flag),
    "KERNBENCH_POOL_REUSE_GROUPS": ("reuse_groups", "0", _no_reuse),
    "KERNBENCH_LEAKS": ("leaks", ", ".join(get_args(Leaks)), _choice(*get_args(Leaks))),
    "KERNBENCH_TEST_ESSENTIAL": ("essential", _FLAG, _flag),
    "KERNBENCH_MAX_PROCS": ("max_procs", "an integer from 1", _whole),
}
"""For each variable, its field, which values it takes, and the function that reads them."""

assert {each for each, *_ in _READ.values()} - {"reuse_groups"} <= {f.name for f in fields(Knobs)}
