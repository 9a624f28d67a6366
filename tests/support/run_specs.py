"""Run specifications of all kinds, for properties."""

from typing import Any, get_args

from hypothesis import strategies as st

from kernbench.run_spec import CCL_ROOTS, MACHINE_ROOTS, DefaultDevice, PytorchRun, Races, RunSpec
from kernbench.sim_engine.dials import Detail, Fidelity

_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
_FILES = st.sampled_from(["h200x8", "my machine.yaml", "a/b.yaml", "ä.yaml"])
_OVERRIDES = st.builds(
    "{}.{}={}".format, st.sampled_from(MACHINE_ROOTS + CCL_ROOTS), _TEXTS.map(repr), _TEXTS
)
_COUNTS = st.integers(0, 1 << 70)

_OF_PYTORCH = st.builds(
    PytorchRun,
    nodes=st.integers(1, 1 << 20),
    fake=st.booleans(),
    as_module=st.booleans(),
    same_ranks=st.booleans(),
    witnesses=st.none()
    | st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True).map(tuple),
    races=st.sampled_from(get_args(Races)),
    check_replicas=st.booleans(),
)


def run_specs(bench: str | None = None) -> st.SearchStrategy[RunSpec]:
    """Returns specifications.

    Args:
        bench: Of all of them, which then name a machine, too; None for any.
    """
    programs = st.none() | st.just("my bench.py")
    return st.builds(
        _spec,
        topology=_FILES if bench else st.none() | _FILES,
        ccl=st.none() | _FILES,
        overrides=st.lists(_OVERRIDES, max_size=3).map(tuple),
        devices=st.just("all")
        | st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(tuple),
        default_device=st.sampled_from(get_args(DefaultDevice)),
        data=st.booleans(),
        fidelity=st.sampled_from(get_args(Fidelity)),
        record=st.sampled_from(get_args(Detail)),
        shadow=st.booleans(),
        seed=_COUNTS,
        eager_limit=_COUNTS,
        watchdog_s=st.floats(0, 1e300),
        max_time_ps=st.integers(0, 10**30),
        step_budget=_COUNTS,
        group_limit=_COUNTS,
        schedule=st.none() | st.lists(st.integers(1, 99), min_size=1, max_size=4).map(tuple),
        bench=st.just(bench) if bench else programs,
        arguments=st.lists(_TEXTS, max_size=3).map(tuple),
        nproc_per_node=st.none() | st.integers(1, 1 << 20),
        as_torch=st.booleans(),
        pytorch=st.none() | _OF_PYTORCH,
    )


def _spec(*, data: bool, pytorch: PytorchRun | None, **fields: Any) -> RunSpec:
    """Returns a specification that has no values where a program of PyTorch makes them up."""
    made_up = pytorch is not None and pytorch.fake
    return RunSpec(data=data and not made_up, pytorch=pytorch, **fields)
