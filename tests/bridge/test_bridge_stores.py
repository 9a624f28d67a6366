"""Stores that programs open: each call as PyTorch's own store answers it, and ranks that meet."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed

SHORT = timedelta(milliseconds=50)
CALLS: dict[str, Callable[[Any], Any]] = {
    "keys at first": lambda s: s.num_keys(),
    "set": lambda s: (s.set("a", "1"), s.get("a"), s.num_keys()),
    "add": lambda s: (s.add("a", 2), s.add("b", 5), s.get("b")),
    "append": lambda s: (s.append("a", "zz"), s.get("a"), s.append("n", "y"), s.get("n")),
    "compare_set of nothing": lambda s: (s.compare_set("q", "x", "y"), s.check(["q"])),
    "compare_set": lambda s: (s.compare_set("q", "", "y"), s.compare_set("q", "y", "z")),
    "compare_set in vain": lambda s: (s.compare_set("q", "no", "w"), s.compare_set("q", "", "w")),
    "several": lambda s: (s.multi_set(["m", "o"], ["1", "2"]), s.multi_get(["o", "m"])),
    "delete": lambda s: (s.delete_key("m"), s.delete_key("m"), s.check(["m"]), s.num_keys()),
    "check": lambda s: (s.check(["a", "b"]), s.check(["a", "none"]), s.check([])),
    "wait": lambda s: s.wait(["a", "b"], SHORT),
    "wait in vain": lambda s: s.wait(["none"], SHORT),
    "wait some seconds": lambda s: s.wait(["a"], 0.5),
    "wait for no time": lambda s: s.wait(["a"], "long"),
    "no list of keys": lambda s: s.check("a"),
    "number as a value": lambda s: s.set("a", 1),
    "number as a key": lambda s: s.set(1, "a"),
    "key of bytes": lambda s: (s.check([b"a"]), s.get(b"a")),
    "add of a part": lambda s: s.add("b", 1.5),
    "bytes": lambda s: (s.set("raw", b"\xff\x00"), s.get("raw")),
    "extended": lambda s: s.has_extended_api(),
    "timeout": lambda s: (s.set_timeout(SHORT), s.timeout),
    "timeout of a part": lambda s: (s.set_timeout(0.25), s.timeout, s.set_timeout(SHORT)),
    "timeout by a prefix": lambda s: (
        dist.PrefixStore("p", s).timeout,
        dist.PrefixStore("p", s).set_timeout(2 * SHORT),
        s.timeout,
    ),
    "prefix": lambda s: _prefixed(dist.PrefixStore("p", s), s),
}
QUEUES: dict[str, Callable[[Any], Any]] = {
    "push": lambda s: (s.queue_push("Q", "1"), s.queue_push("Q", b"2"), s.queue_len("Q")),
    "queue check": lambda s: (s.check(["Q"]), s.num_keys()),
    "pop": lambda s: (s.queue_pop("Q"), s.queue_pop("Q", False), s.queue_len("Q")),
    "pop in vain": lambda s: s.queue_pop("Q", False),
    "list": lambda s: sorted(s.list_keys()),
}


def _prefixed(prefixed: Any, store: Any) -> Any:
    prefixed.set("k", "v")
    seen = prefixed.get("k"), store.get("p/k"), prefixed.check(["k"]), prefixed.add("n", 3)
    return *seen, prefixed.num_keys(), prefixed.delete_key("k"), prefixed.underlying_store is store


def _answers(store: Any) -> dict[str, Any]:
    """Returns what a store answers to each call, or the class of its error."""
    found: dict[str, Any] = {}
    for name, call in {**CALLS, **QUEUES}.items():
        try:
            found[name] = call(store)
        except Exception as error:
            # The time-out of PyTorch's FileStore has no class of its own.
            found[name] = RuntimeError if name == "wait in vain" else type(error)
    return found


MAKERS: dict[str, Callable[[str], Any]] = {
    "TCPStore": lambda _: dist.TCPStore("localhost", 0, 1, True, SHORT),
    "TCPStore of any size": lambda _: dist.TCPStore("localhost", 0, is_master=True, timeout=SHORT),
    "FileStore": lambda path: dist.FileStore(path, 1),
    "HashStore": lambda _: dist.HashStore(),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_each_call_is_answered_as_by_pytorchs_own_store(kind: str, tmp_path: Path) -> None:
    def answer(path: Path) -> dict[str, Any]:
        found = _answers(MAKERS[kind](str(path)))
        if kind == "FileStore":
            found.pop("list")  # PyTorch's tells the keys by which it counts
        return found

    assert on_ranks(lambda _: answer(tmp_path / "ours")) == [answer(tmp_path / "theirs")]


WRONG: dict[str, Callable[[], Any]] = {
    "port above": lambda: dist.TCPStore("localhost", 70000, 1, True),
    "port below": lambda: dist.TCPStore("localhost", -1, 1, True),
    "option": lambda: dist.TCPStore("localhost", 0, bogus=1),
    "no ranks": lambda: dist.TCPStore("localhost", 0, 0, True),
    "taken": lambda: _second(first=False, second=False),
    "taken by one alone": lambda: _second(first=False, second=True),
    "shared by one alone": lambda: _second(first=True, second=False),
    "shared": lambda: _second(first=True, second=True),
    "after its end": lambda: _second(first=None, second=False),
    "libuv": lambda: [
        dist.TCPStore("localhost", 0, 1, True, use_libuv=uv).libuvBackend for uv in (True, False)
    ],
    "names": lambda: [_names()],
    "no wait": lambda: dist.TCPStore("localhost", 0, 2, True, wait_for_workers=False).num_keys(),
}


def _second(*, first: bool | None, second: bool) -> Any:
    store = dist.TCPStore("localhost", 0, 1, True, multi_tenant=bool(first))
    port = store.port
    store.set("key", "1")
    if first is None:
        del store
    return dist.TCPStore("localhost", port, 1, True, multi_tenant=second).check(["key"])


def _names() -> Any:
    master = dist.TCPStore("localhost", 0, 1, True)
    master.set("key", "1")
    return [dist.TCPStore(host, master.port).get("key") for host in ("127.0.0.1", "localhost")]


@pytest.mark.parametrize("what", WRONG)
def test_stores_are_opened_and_refused_as_pytorchs_own(what: str) -> None:
    def outcome(_: int = 0) -> Any:
        try:
            return WRONG[what]()
        except Exception as error:
            return type(error)

    assert on_ranks(outcome) == [outcome()]


def test_a_client_that_comes_first_waits_for_its_master_and_all_for_all() -> None:
    def work(rank: int) -> Any:
        if rank == 2:
            torch.cuda.set_device(rank)
            torch.ones(1 << 20, device="cuda")
            torch.cuda.synchronize()
        store = dist.TCPStore("localhost", 29999, 3, rank == 2)
        store.add("there", 1)
        store.set(str(rank), "x")
        store.wait([str(each) for each in range(3)])
        return store.get("there"), store.num_keys()

    assert on_ranks(work, 3) == [(b"3", 5)] * 3


def test_a_client_without_a_master_is_told_with_its_line() -> None:
    def work(rank: int) -> None:
        if rank:
            dist.TCPStore("localhost", 29999)  # nobody listens

    with pytest.raises(SpawnException) as failed:
        on_ranks(work, 2)
    assert "TCPStore('localhost', 29999)" in str(failed.value)
    assert "# nobody listens" in str(failed.value)


def test_a_file_is_shared_by_the_ranks_and_a_class_keeps_its_own_ways(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        class Loud(dist.FileStore):  # type: ignore[misc]
            def set(self, key: str, value: str) -> None:
                super().set(key.upper(), value)

        store = Loud(str(tmp_path / "file"), 2)
        store.set(f"r{rank}", "1")
        dist.PrefixStore("p", store).set(f"r{rank}", "2")
        return store.multi_get(["R0", "R1", "P/R0", "P/R1"])

    assert on_ranks(work, 2) == [[b"1", b"1", b"2", b"2"]] * 2
    assert on_ranks(lambda _: dist.FileStore(str(tmp_path / "file"), 1).num_keys()) == [1]


def test_a_file_ends_with_the_last_of_its_stores(tmp_path: Path) -> None:
    def again(path: Path, size: int) -> list[Any]:
        found: list[Any] = []
        for _ in range(2):
            first, second = (dist.FileStore(str(path), size) for _ in range(2))
            found += [first.add("count", 1), first.num_keys()]
            del first
            found += [second.add("count", 1), second.num_keys()]
            del second
        return found

    def answer(path: Path) -> list[Any]:
        return [again(path / str(size), size) for size in (-1, 0, 1, 2, 3)]

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.mkdir()
    assert on_ranks(lambda _: answer(ours)) == [answer(theirs)]


def test_a_wait_ends_after_its_simulated_time() -> None:
    def work(rank: int) -> Any:
        store = dist.TCPStore("localhost", 29999, 2, rank == 0)
        if rank:
            try:
                store.wait(["late"], timedelta(hours=1))
            except dist.DistStoreError as error:
                return str(error)
        return None

    assert on_ranks(work, 2) == [None, "wait timeout after 3600000ms, keys: /late"]
