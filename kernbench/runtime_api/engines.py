"""Makes the engine that a run specification asks for; every run makes its engine here."""

from dataclasses import replace

from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology, load_topology


def load_machine(spec: RunSpec) -> Topology:
    """Returns the machine of a specification: the content of its file, with the overrides.

    Raises:
        ConfigError: If something is wrong with the file or the overrides; the error lists it all.
        UsageError: If the specification names no file.
    """
    if spec.topology is None:
        raise UsageError(
            "RunSpec(topology=None): expected a file, or the name of a shipped machine",
            hint="name one, or bring a machine made by code: RuntimeContext(spec, engine=...)",
        )
    return load_topology(spec.topology, spec.machine_overrides).topology_obj


def make_engine(spec: RunSpec) -> GraphEngine:
    """Returns a fresh engine on the machine of a specification, with its dials.

    Raises:
        ConfigError: If something is wrong with the file or the overrides; the error lists it all.
        UsageError: If the specification names no file.
    """
    machine = load_machine(spec)
    return GraphEngine(
        machine,
        spec.data and spec.pytorch is None,
        fidelity=spec.fidelity,
        record=spec.record,
        shadow=spec.shadow,
        moves_at_call=spec.pytorch is not None,
    )


def spec_of(engine: GraphEngine, spec: RunSpec | None = None) -> RunSpec:
    """Returns a specification that names no machine, for an engine that exists already.

    Args:
        engine: The engine; it decides data, fidelity and record.
        spec: Specification with all other fields; by default a `RunSpec` with default values.
    """
    spec = RunSpec() if spec is None else spec
    return replace(
        spec,
        topology=None,
        overrides=spec.ccl_overrides,
        data=spec.data if engine.moves_at_call else engine.enable_data,
        fidelity=engine.fidelity,
        record=engine.op_log.detail,
        shadow=engine.shadow,
    )


def check_engine(engine: GraphEngine, spec: RunSpec) -> None:
    """Checks that a specification agrees with an engine in all that the engine decides.

    Raises:
        UsageError: If they differ; the error lists the differences.
    """
    right = spec_of(engine, spec)
    fields = ("topology", "overrides", "data", "fidelity", "record", "shadow")
    facts = [
        f"{name}: expected {getattr(right, name)!r}, got {getattr(spec, name)!r}"
        for name in fields
        if getattr(right, name) != getattr(spec, name)
    ]
    if facts:
        raise UsageError(
            "RuntimeContext(spec, engine=): the specification differs from the engine",
            facts,
            hint="give the specification alone, or spec_of(engine, spec) with the engine",
        )
