"""The engine that a run specification asks for; made in one way wherever a run begins."""

from dataclasses import replace

from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology, load_topology


def load_machine(spec: RunSpec) -> Topology:
    """Returns the machine of a specification, as its file gives it with the overrides.

    Raises:
        ConfigError: Everything that is wrong with the file and the overrides.
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
        ConfigError: Everything that is wrong with the file and the overrides.
        UsageError: If the specification names no file.
    """
    machine = load_machine(spec)
    return GraphEngine(
        machine, spec.data, fidelity=spec.fidelity, record=spec.record, shadow=spec.shadow
    )


def spec_of(engine: GraphEngine, spec: RunSpec | None = None) -> RunSpec:
    """Returns a specification without a machine of its own, for an engine that is there.

    Args:
        engine: The engine.
        spec: Gives all that an engine does not decide; by default the usual values.
    """
    spec = RunSpec() if spec is None else spec
    return replace(
        spec,
        topology=None,
        overrides=spec.ccl_overrides,
        data=engine.enable_data,
        fidelity=engine.fidelity,
        record=engine.op_log.detail,
        shadow=engine.shadow,
    )


def check_engine(engine: GraphEngine, spec: RunSpec) -> None:
    """Checks that a specification says nothing that an engine has otherwise.

    Raises:
        UsageError: If it does.
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
