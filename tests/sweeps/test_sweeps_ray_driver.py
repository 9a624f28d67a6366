"""The process that speaks to Ray, with a Ray that is none: retries, and what is told."""

import sys
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kernbench.sweeps import ray_driver


class RayError(Exception): ...


class RayTaskError(RayError): ...


class WorkerCrashedError(RayError): ...


class NodeDiedError(RayError): ...


class LocalRayletDiedError(RayError): ...


class RaySystemError(RayError): ...


class RuntimeEnvSetupError(RayError): ...


class Ray(ModuleType):
    """What the driver uses of Ray; each task ends as `ends` says, in turn."""

    def __init__(self, *ends: Exception | dict[str, Any]) -> None:
        super().__init__("ray")
        self.exceptions = ModuleType("ray.exceptions")
        kinds: list[type[Exception]] = [RayError, *RayError.__subclasses__()]
        for kind in kinds:
            setattr(self.exceptions, kind.__name__, kind)
        self.ends = deque(ends)
        self.cpus = 4.0
        self.inits: list[dict[str, Any]] = []
        self.options: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.refused: Exception | None = None

    def init(self, **options: Any) -> None:
        self.inits.append(options)
        if self.refused is not None:
            raise self.refused

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        self.options = options
        ray = self

        class Task:
            @staticmethod
            def remote(message: Any) -> int:
                ray.asked.append(message)
                return len(ray.asked)

        return lambda function: Task

    def wait(self, under_way: list[int], timeout: float) -> tuple[list[int], list[int]]:
        assert under_way
        return under_way[:1], under_way[1:]

    def get(self, reference: int) -> Any:
        end = self.ends.popleft()
        if isinstance(end, Exception):
            raise end
        return end

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ray]:
    monkeypatch.setattr(ray_driver, "_state", ray_driver._State())

    def make(*ends: Exception | dict[str, Any]) -> Ray:
        ray = Ray(*ends)
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.exceptions", ray.exceptions)
        return ray

    return make


HERE = {"address": None, "jobs": None, "folder": "here"}
ASKED = {"key": "k", "spec": {"a": 1}, "limit_s": 2.0}


def asked(ray: Ray, **start: Any) -> dict[str, Any]:
    assert "slots" in ray_driver.start({**HERE, **start})
    ray_driver.submit(ASKED)
    return ray_driver.next_({})


def test_a_record_is_passed_on(driver: Callable[..., Ray]) -> None:
    ray = driver({"record": {"x": 1}})
    assert asked(ray) == {"key": "k", "record": {"x": 1}, "slots": 8}
    assert ray.asked == [{"folder": "here", **ASKED}]
    assert ray.options == {"num_cpus": 1, "max_retries": 0}


@pytest.mark.parametrize("kind", [WorkerCrashedError, NodeDiedError])
def test_a_task_whose_worker_has_gone_is_given_to_another_once(
    kind: type[RayError], driver: Callable[..., Ray]
) -> None:
    ray = driver(kind("gone"), {"record": 1})
    assert asked(ray)["record"] == 1
    assert len(ray.asked) == 2
    ray = driver(kind("gone"), kind("again"), {"record": 1})
    ray_driver._state.pending.clear()
    name = kind.__name__
    assert asked(ray) == {"key": "k", "died": [f"{name}: gone", f"{name}: again"], "slots": 8}
    assert len(ray.asked) == 2
    assert not ray_driver._state.pending


@pytest.mark.parametrize("kind", [LocalRayletDiedError, RaySystemError])
def test_a_ray_that_has_gone_is_no_matter_of_a_run(
    kind: type[RayError], driver: Callable[..., Ray]
) -> None:
    with pytest.raises(kind):
        asked(driver(kind("gone")))


@pytest.mark.parametrize(
    ("end", "summary", "fact"),
    [
        (RayTaskError("x\nNo module named kernbench\n"), "cannot run kernbench", "No module named"),
        (RuntimeEnvSetupError("too large"), "cannot bring the files", "too large"),
        (
            {"differs": "node7"},
            "the node node7 of Ray has other files",
            "name files by paths below",
        ),
    ],
)
def test_what_no_other_worker_can_mend_ends_the_sweep(
    end: Any, summary: str, fact: str, driver: Callable[..., Ray]
) -> None:
    refused = asked(driver(end))["refused"]
    assert summary in refused["summary"]
    assert fact in " ".join(refused["facts"])


def test_ray_starts_here_or_takes_the_files_to_a_cluster(driver: Callable[..., Ray]) -> None:
    ray = driver({"record": 1}, {"record": 1})
    asked(ray, jobs=3)
    assert (ray.inits[0]["address"], ray.inits[0]["num_cpus"]) == ("local", 3)
    assert asked(ray, address="auto", jobs=3)["slots"] == 3
    assert ray.inits[1]["address"] == "auto"
    assert ray.inits[1]["runtime_env"] == {"working_dir": "here"}


def test_nodes_run_in_the_folder_that_ray_makes(driver: Callable[..., Ray]) -> None:
    ray = driver({"record": 1})
    asked(ray, address="auto")
    assert ray.asked[0]["folder"] is None


@pytest.mark.parametrize(
    ("address", "summary"),
    [(None, "Ray cannot be started here"), ("auto", "Ray at auto cannot be reached")],
)
def test_a_ray_that_is_not_there_is_told(
    address: str | None, summary: str, driver: Callable[..., Ray]
) -> None:
    ray = driver()
    ray.refused = ConnectionError("Could not find any running Ray instance.")
    refused = ray_driver.start({**HERE, "address": address})["refused"]
    assert refused["summary"] == summary
    assert refused["facts"] == ["Could not find any running Ray instance."]
    assert ("ray status" in refused["hint"]) is (address is not None)


def test_a_cluster_that_grows_is_used(driver: Callable[..., Ray]) -> None:
    ray = driver({"record": 1}, {"record": 1})
    assert asked(ray)["slots"] == 8
    ray.cpus = 0.0
    ray_driver.submit(ASKED)
    assert ray_driver.next_({})["slots"] == 1
