"""What came of a case, and the file that holds the results of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from kernbench.testing.warned import Warned

Ending = Literal["", "skip", "xfail", "interrupt", "exit"]
"""How a case ended that neither passed nor failed, as `pytest.skip` and the like say."""

_PS: Final = 10**12
"""Picoseconds in a second."""

_TUPLES: Final = ("ranks_failed", "leaks")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What came of one run of a case.

    Attributes:
        nodeid: As in the request.
        ok: Whether no rank has failed, and nothing has leaked.
        error: The report of the first rank that failed, in rank order, with the others' last lines;
            empty if `ok`.
        ranks_failed: The ranks that failed; not those that were aborted for their sake.
        wall_s: Seconds of wall time.
        sim_ps: Simulated picoseconds.
        leaks: What the case has left behind, a line each, with its creation site.
        warnings: The warnings that it has raised, as plain values.
        output: What its ranks have printed.
        worker_pid: The process in which it ran.
        ending: What a rank has asked pytest for, such as `skip`; empty if nothing.
        reason: The reason that it has given for that.
        retries: How many further processes were asked, after one that did not answer.
    """

    nodeid: str
    ok: bool
    error: str = ""
    ranks_failed: tuple[int, ...] = ()
    wall_s: float = 0.0
    sim_ps: int = 0
    leaks: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = ()
    output: str = ""
    worker_pid: int = 0
    ending: Ending = ""
    reason: str = ""
    retries: int = 0

    @property
    def sim_s(self) -> float:
        """Simulated seconds."""
        return self.sim_ps / _PS

    def to_json(self) -> dict[str, Any]:
        """Returns the result as plain values; `sim_s` are the simulated seconds."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(plain[name]) for name in _TUPLES}
        return {**plain, **lists, "warnings": list(map(list, self.warnings)), "sim_s": self.sim_s}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "CaseResult":
        """Returns the result of plain values such as those of `to_json`.

        Args:
            document: The values by name; others are left out.
        """
        values = {
            field.name: document[field.name] for field in fields(cls) if field.name in document
        }
        values |= {name: tuple(values[name]) for name in _TUPLES if name in values}
        values["warnings"] = tuple(Warned(*each) for each in values.get("warnings", ()))
        return cls(**values)
