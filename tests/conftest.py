"""What every test may use: machines by name, machines made up on the spot."""

import os

# One thread for numpy's BLAS, set before numpy is imported: results must not depend on the host.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import json  # noqa: E402
from collections.abc import Callable, Iterator, Mapping, Sequence  # noqa: E402
from functools import cache  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import yaml  # noqa: E402
from hypothesis import settings  # noqa: E402

from kernbench.runtime_api.context import RuntimeContext  # noqa: E402
from kernbench.sim_engine.engine import GraphEngine  # noqa: E402
from kernbench.topology import Topology, load_topology, shipped_machines  # noqa: E402

settings.register_profile("kernbench", deadline=None, derandomize=True, database=None)
settings.load_profile("kernbench")


@pytest.fixture(scope="session")
def topology() -> Callable[[str], Topology]:
    """Loads a shipped machine; one object a session, since a machine on paper never changes."""
    return cache(lambda name: load_topology(name).topology_obj)


@pytest.fixture(scope="session")
def changed_topology() -> Callable[..., Topology]:
    """Loads a shipped machine with entries of `system.sips.changed`."""

    def load(name: str, *entries: Mapping[str, Any], overrides: Sequence[str] = ()) -> Topology:
        changed = f"system.sips.changed={json.dumps(entries)}"
        return load_topology(name, [*overrides, changed]).topology_obj

    return load


@pytest.fixture(scope="session")
def make_topology(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Topology]:
    """Makes `sip8` with another network between `count` SIPs, and with other parts of a SIP."""
    base = yaml.safe_load(shipped_machines()["sip8"].read_text())

    def make(count: int, network: Mapping[str, Any], **sip: Any) -> Topology:
        system = {**base["system"], "name": "made-up"}
        system["sips"] = {
            "count": count,
            "network": {"bandwidth": "50 GB/s", "latency": "100 ns", **network},
        }
        system["sip"] = {**system["sip"], **sip}
        file = tmp_path_factory.mktemp("machine") / "machine.yaml"
        file.write_text(yaml.safe_dump({"system": system}))
        return load_topology(file).topology_obj

    return make


@pytest.fixture
def ctx(topology: Callable[[str], Topology]) -> Iterator[RuntimeContext]:
    """A machine with data."""
    with RuntimeContext(engine=GraphEngine(topology("sip8"))) as context:
        yield context


@pytest.fixture
def ctx_without_data(topology: Callable[[str], Topology]) -> Iterator[RuntimeContext]:
    """A machine without data."""
    with RuntimeContext(engine=GraphEngine(topology("sip8"), enable_data=False)) as context:
        yield context


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, ctx: RuntimeContext) -> str:
    """Each place where a tensor can be, on a machine with data."""
    name: str = request.param
    return name
