"""What every test may use: machines by name, machines made up on the spot."""

import gc
import os
import signal
import threading

# One thread for numpy's BLAS, set before numpy is imported: results must not depend on the host.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# What programs print must not depend on it either: on a CI machine pytest cuts no line to its
# width, and others colour what no terminal reads.
for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS"):
    os.environ.pop(name, None)

# Triton reads the first when it is imported, and PyTorch's compiler imports Triton: kernels are
# compiled, whichever test comes first. Without the second, 3.9 warns.
os.environ.pop("TRITON_INTERPRET", None)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

# A shell has programs in the background ignore Ctrl-C, which tests send.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

import json  # noqa: E402
from collections.abc import Callable, Iterator, Mapping, Sequence  # noqa: E402
from functools import cache  # noqa: E402
from importlib.util import find_spec  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import yaml  # noqa: E402
from hypothesis import settings  # noqa: E402

# All of it at once: a suite that a test runs in this process forgets what it imported first, and
# would make a second half of kernbench.
import kernbench.torch  # noqa: E402, F401
from kernbench import des  # noqa: E402
from kernbench.des import core  # noqa: E402
from kernbench.runtime_api.context import RuntimeContext  # noqa: E402
from kernbench.sim_engine.engine import GraphEngine  # noqa: E402
from kernbench.topology import Topology, load_topology, shipped_machines  # noqa: E402

_torch = find_spec("torch")
# Without PyTorch, `torch` is the folder of tests of that name, which has no file of its own.
collect_ignore_glob = (
    [] if _torch is not None and _torch.origin else ["bridge/*", "isolation/test_isolation_*"]
)

settings.register_profile("kernbench", deadline=None, derandomize=True, database=None)
settings.register_profile("traced", settings.get_profile("kernbench"), max_examples=25)
settings.load_profile("kernbench")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the choice of what ranks run on."""
    parser.addoption(
        "--carriers",
        choices=("greenlets", "threads"),
        default="greenlets",
        help="what ranks run on; programs of kernels run on greenlets in any case",
    )
    parser.addoption(
        "--megatron", metavar="FOLDER", help="checkout of Megatron-LM, whose own tests are run"
    )
    parser.addoption(
        "--triton-tests", metavar="FOLDER", help="python/test of a checkout of Triton, to be run"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Takes fewer examples while coverage is measured: it counts lines, and makes each one dear."""
    if getattr(config.option, "cov_source", None):
        settings.load_profile("traced")


@pytest.fixture(autouse=True)
def carriers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[des.Carriers]:
    """What the tasks of new loops run on, as `--carriers` says."""
    if request.config.getoption("--carriers") == "greenlets":
        yield des.POOL
        return
    for marker in request.node.iter_markers("greenlets_only"):
        pytest.skip(f"of greenlets only: {marker.args[0]}")
    with des.ThreadPool() as pool:
        monkeypatch.setattr(core, "default_carriers", pool)
        for room in ("execution", "grammar"):
            monkeypatch.setattr(f"kernbench.tl.{room}.EventLoop", _on_greenlets)
        yield pool


def _on_greenlets() -> des.EventLoop:
    loop = des.EventLoop()
    loop.carriers = des.POOL
    return loop


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


@pytest.fixture(scope="module")
def small_heap() -> Iterator[None]:
    """Hides what earlier tests have loaded from searches for garbage: with it each takes 1 s."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the waits for a worker's end short; that they are kept is tested, not their length."""
    for name in ("_STACKS_S", "_TERMINATE_S", "_LAST_WORDS_S"):
        monkeypatch.setattr(f"kernbench.workers.worker.{name}", 0.1)
