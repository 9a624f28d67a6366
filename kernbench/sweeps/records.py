"""A run of a sweep, and what came of it, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kernbench.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a sweep.

    Attributes:
        spec: What runs.
        varied: The values that tell it from the other runs, by name: keys of `--set` such as
            `system.sips.count`, flags of `--arg` such as `--dtype`, `topology`, `ccl`.
        key: A digest of all that it depends on, see `keys.Keys`: equal runs have equal keys, in
            any sweep.
    """

    spec: RunSpec
    varied: Mapping[str, str]
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What came of a run.

    All but `wall_s` depends on the run alone, so that it is the same wherever the run took place.

    Attributes:
        run: The run.
        ok: Whether it has succeeded.
        results: Documents that the bench has left, as `kernbench run --json` writes them.
        sim_ps: Simulated picoseconds.
        failure: The failure as plain values, as `kernbench run --json` writes it, with the last
            lines that the run has printed as `output`; None if it has succeeded.
        report: The failure as text; empty if it has succeeded.
        breakdown: Where the time of each rank went, rows of plain values; None unless the
            specification has the record `full`.
        wall_s: Seconds of wall time.
    """

    run: Run
    ok: bool
    results: tuple[Mapping[str, Any], ...] = ()
    sim_ps: int = 0
    failure: Mapping[str, Any] | None = None
    report: str = ""
    breakdown: tuple[Mapping[str, Any], ...] | None = None
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the record as plain values: those of `kernbench run --json`, and more."""
        breakdown = self.breakdown
        return {
            "key": self.run.key,
            "run": self.run.spec.name,
            "varied": dict(self.run.varied),
            "spec": self.run.spec.to_json(),
            "ok": self.ok,
            "sim_ps": self.sim_ps,
            "results": list(self.results),
            "failure": self.failure,
            "report": self.report,
            "breakdown": None if breakdown is None else list(breakdown),
            "wall_s": self.wall_s,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], run: Run | None = None) -> "Record":
        """Returns the record of the plain values of `to_json`.

        Args:
            values: The plain values.
            run: The run, if it is known; it then takes the place of the one in the values.

        Raises:
            ConfigError: If the specification cannot be used.
            ValueError: If a value is missing or of another kind.
        """
        if not is_record(values):
            raise ValueError("expected the values of a record")
        breakdown = values["breakdown"]
        if run is None:
            run = Run(RunSpec.from_json(values["spec"]), dict(values["varied"]), values["key"])
        return cls(
            run=run,
            ok=values["ok"],
            results=tuple(values["results"]),
            sim_ps=values["sim_ps"],
            failure=values["failure"],
            report=values["report"],
            breakdown=None if breakdown is None else tuple(breakdown),
            wall_s=values["wall_s"],
        )


_KINDS: Final[Mapping[str, Any]] = {
    "key": str,
    "varied": dict,
    "spec": dict,
    "ok": bool,
    "sim_ps": int,
    "results": list,
    "failure": dict | None,
    "report": str,
    "breakdown": list | None,
    "wall_s": float | int,
}


def is_record(values: object) -> bool:
    """Returns whether plain values are those of a record, as `Record.to_json` gives them."""
    return isinstance(values, Mapping) and all(
        name in values and isinstance(values[name], kind) for name, kind in _KINDS.items()
    )
