"""Keys and values that ranks share: who waits for one, until when, and who reaches a server."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kernbench.process.process import current_process
from kernbench.ranks.opened_stores import PORTS, Opened
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.ranks.stores import Contents, KeyValues
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench


def _filled() -> KeyValues:
    store = KeyValues()
    store.multi_set(["a", "n"], ["1", b"1"])
    store.append("n", "0")
    store.queue_push("q", "x")
    return store


CALLS: dict[str, tuple[Callable[[KeyValues], Any], Any]] = {
    "get": (lambda s: s.get("a"), b"1"),
    "several": (lambda s: s.multi_get(["a", "n"]), [b"1", b"10"]),
    "key of bytes": (lambda s: s.get(b"a"), b"1"),  # type: ignore[arg-type]
    "add": (lambda s: (s.add("n", 3), s.add("new", -1)), (13, -1)),
    "append": (lambda s: s.get("n"), b"10"),
    "compare_set": (lambda s: (s.compare_set("a", "1", "x"), s.get("a")), (b"x", b"x")),
    "compare_set in vain": (lambda s: s.compare_set("a", "2", "x"), b"1"),
    "compare_set of nothing": (lambda s: s.compare_set("new", "", "x"), b"x"),
    "check": (lambda s: (s.check(["a"]), s.check(["a", "new"])), (True, False)),
    "delete": (
        lambda s: (s.delete_key("a"), s.deleteKey("a"), s.list_keys()),
        (True, False, ["n"]),
    ),
    "count": (lambda s: (s.num_keys(), s.getNumKeys()), (2, 2)),
    "queue": (
        lambda s: (s.queue_len("q"), s.check(["q"]), s.queue_pop("q"), s.check(["q"])),
        (1, True, b"x", False),
    ),
    "others": (lambda s: (s.has_extended_api(), s.clone() is s), (True, True)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_store_keeps_what_it_is_given(ctx: RuntimeContext, call: str) -> None:
    run, expected = CALLS[call]
    with ctx:
        assert run(_filled()) == expected


WRONG: dict[str, tuple[Callable[[KeyValues], Any], type[Exception], str]] = {
    "value": (lambda s: s.set("a", 2), TypeError, "not int: 2"),  # type: ignore[arg-type]
    "key": (lambda s: s.get(2), TypeError, "a key of a store is a str"),  # type: ignore[arg-type]
    "keys": (lambda s: s.check("a"), TypeError, "expects a list"),  # type: ignore[arg-type]
    "timeout": (lambda s: s.wait(["a"], "1"), TypeError, "timeout '1'"),  # type: ignore[arg-type]
    "number": (lambda s: s.add("a", 1.5), TypeError, "float"),  # type: ignore[arg-type]
    "as many": (lambda s: s.multi_set(["a"], []), RuntimeError, "same size"),
    "empty queue": (lambda s: s.queue_pop("none", block=False), LookupError, "queue is empty"),
}


@pytest.mark.parametrize("call", WRONG)
def test_what_a_store_cannot_do_is_told(ctx: RuntimeContext, call: str) -> None:
    run, kind, text = WRONG[call]
    with ctx, pytest.raises(kind, match=text):
        run(_filled())


def test_a_rank_waits_for_a_key_and_a_queue(kernbench: Kernbench) -> None:
    shared = Contents()
    found: list[bytes] = []

    def worker(rank: int) -> None:
        store = KeyValues(shared)
        if rank == 0:
            found.append(store.get("key"))
            found.append(store.queue_pop("queue"))
        else:
            store.set("key", "there")
            store.queue_push("queue", "first")

    kernbench.spawn(worker, nprocs=2)
    assert found == [b"there", b"first"]


def test_a_wait_ends_after_its_simulated_time(kernbench: Kernbench) -> None:
    told: list[str] = []

    def worker(rank: int) -> None:
        store, host = KeyValues(), current_process().host
        before = host.clock
        with pytest.raises(RuntimeError) as caught:
            store.wait(["a", "b"], 1.5)
        told.append(str(caught.value))
        assert host.clock - before >= 1_500_000_000_000
        store.set("a", "1")
        store.wait(["a"], timedelta(seconds=1))

    kernbench.spawn(worker, nprocs=1)
    assert told == ["wait timeout after 1500ms, keys: /a, /b"]


def test_who_waits_for_ever_is_told_with_the_key(kernbench: Kernbench) -> None:
    with pytest.raises(SpawnException, match="'lost' in a store"):
        kernbench.spawn(lambda rank: KeyValues().get("lost"), nprocs=1)


def test_a_port_is_of_its_master_while_that_lives(kernbench: Kernbench) -> None:
    opened = Opened()
    seen: list[Any] = []

    def worker(rank: int) -> None:
        process = current_process()
        if rank == 1:
            KeyValues(opened.connect(process, "localhost", 7).contents).set("met", "1")
            seen.append(opened.listen(process, 7, KeyValues(), multi_tenant=True)[1])
            return
        master, other = KeyValues(), KeyValues()
        port, server = opened.listen(process, 7, master, multi_tenant=True)
        assert server is not None
        assert opened.listen(process, 7, other, multi_tenant=True) == (port, server)
        assert opened.listen(process, 7, other, multi_tenant=False) == (port, None)
        free, another = opened.listen(process, 0, other, multi_tenant=False)
        assert 7 < free < PORTS
        assert another is not server
        KeyValues(server.contents).wait(["met"])
        del master, other
        assert opened.server(process, 7) is None

    kernbench.spawn(worker, nprocs=2)
    assert seen == [None]
    opened.clear()


def test_a_file_ends_with_the_last_of_its_stores(kernbench: Kernbench, tmp_path: Path) -> None:
    opened, name = Opened(), str(tmp_path / "file")

    def worker(rank: int) -> None:
        process = current_process()
        file = opened.file(process, name)
        assert opened.file(process, name) is file
        opened.close(name, file, 2)
        assert opened.file(process, name) is file
        opened.close(name, file, 2)
        opened.close(name, file, 2)
        assert opened.file(process, name) is not file

    kernbench.spawn(worker, nprocs=1)
    kernbench.spawn(worker, nprocs=1)  # a spawn begins without the files of the one before
