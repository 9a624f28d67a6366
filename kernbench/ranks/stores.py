"""Keys and values that ranks share, as `torch.distributed.Store` has them.

What a rank lacks parks it, and nobody else.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import index
from typing import Any, Final

from kernbench.des import Event, order
from kernbench.process.process import Process, current_process

_PS_PER_US: Final = 1_000_000


class Contents:
    """Keys, values and queues that several stores share.

    Attributes:
        values: The values, by key.
        queues: The queues, by key.
    """

    def __init__(self) -> None:
        self.values: Final[dict[str, bytes]] = {}
        self.queues: Final[dict[str, list[bytes]]] = {}
        self._changed = Event("a key of the store")

    def touch(self) -> None:
        """Wakes who waits for a change."""
        changed, self._changed = self._changed, Event("a key of the store")
        changed.settle(0)

    def wait(
        self,
        process: Process,
        ready: Callable[[], bool],
        timeout: timedelta | None,
        keys: Sequence[str],
    ) -> bool:
        """Parks a rank until something is there; returns whether it is.

        Args:
            ready: Whether it is there.
            timeout: Simulated time to wait; None: without end, as a hang is found when it happens.
            keys: The keys of it, for reports.
        """
        if ready():
            return True
        late, loop = Event("the end of a time-out"), process.engine.loop
        ring = late.settle
        if timeout is not None:
            wait = timeout // timedelta(microseconds=1) * _PS_PER_US
            end = process.host.clock + wait
            loop.at(max(end, loop.now), loop.owner(order.rank_of(process.rank)), ring, end)
        try:
            while not ready():
                if late.time is not None:
                    return False
                process.wait(_first_of(self._changed, late, keys))
        finally:
            if timeout is not None:
                loop.withdraw(ring)
        return True


def _first_of(changed: Event, late: Event, keys: Sequence[str]) -> Event:
    """Returns an event that settles with the first of two; reports tell its label."""
    first = Event(f"{', '.join(map(repr, keys))} in a store")

    def settle(time: int) -> None:
        if first.time is None:
            first.settle(time)

    changed.when_settled(settle)
    late.when_settled(settle)
    return first


def _bytes(value: str | bytes) -> bytes:
    if not isinstance(value, str | bytes | bytearray):  # `bytes(2)` would be two zeros
        raise TypeError(f"a store keeps str or bytes, not {type(value).__name__}: {value!r}")
    return value.encode() if isinstance(value, str) else bytes(value)


def _name(key: str | bytes) -> str:
    if isinstance(key, str):
        return key
    if not isinstance(key, bytes | bytearray):
        raise TypeError(f"a key of a store is a str, not {type(key).__name__}: {key!r}")
    return key.decode()


def _names(keys: Sequence[str]) -> list[str]:
    if isinstance(keys, str | bytes):
        raise TypeError(f"a store expects a list of keys, not {keys!r}")
    return [_name(key) for key in keys]


class KeyValues:
    """Keys and values, shared by all stores with the same contents, without simulated time.

    Args:
        contents: What the store shares with others; None: nothing.

    Attributes:
        failed: Class of the error of a call that the contents do not allow.
        empty: Class of the error of a queue that is empty.
    """

    failed: type[Exception] = RuntimeError
    empty: type[Exception] = LookupError

    def __init__(self, contents: Contents | None = None) -> None:
        super().__init__()
        self._contents = Contents() if contents is None else contents

    def calling(self) -> Process:
        """Returns the rank that calls."""
        return current_process()

    def set(self, key: str, value: str | bytes) -> None:
        """Writes a value."""
        self._contents.values[_name(key)] = _bytes(value)
        self._contents.touch()

    def get(self, key: str) -> bytes:
        """Returns a value; waits until there is one."""
        self.wait([key])
        return self._contents.values[_name(key)]

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, which is 0 at first; returns the sum.

        Args:
            key: Name of the number.
            amount: What is added.

        Raises:
            TypeError: If `amount` is no whole number.
            ValueError: If the value is no number.
        """
        total = int(self._contents.values.get(_name(key), b"0")) + index(amount)
        KeyValues.set(self, key, str(total))
        return total

    def append(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a value."""
        KeyValues.set(self, key, self._contents.values.get(_name(key), b"") + _bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Writes a value if the present one is `expected`; returns the value that is there then.

        Args:
            key: Name of the value.
            expected: The value that must be there; empty: none.
            desired: The value to write.
        """
        present, wanted = self._contents.values.get(_name(key)), _bytes(expected)
        if present in {wanted or None, wanted}:
            KeyValues.set(self, key, desired)
        return self._contents.values.get(_name(key), wanted)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Returns several values; waits until all are there."""
        self.wait(keys)
        return [self._contents.values[key] for key in _names(keys)]

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """Writes several values.

        Args:
            keys: Their names.
            values: As many values.

        Raises:
            Exception: `failed`, if there are not as many.
        """
        if len(keys) != len(values):
            raise self.failed("multiSet keys and values vectors must be of same size")
        for key, value in zip(keys, values, strict=True):
            KeyValues.set(self, key, value)

    def check(self, keys: list[str]) -> bool:
        """Returns whether all keys have a value, or something in their queue."""
        values, queues = self._contents.values, self._contents.queues
        return all(key in values or queues.get(key) for key in _names(keys))

    def wait(self, keys: list[str], timeout: timedelta | float | None = None) -> None:
        """Waits until all keys have a value.

        Args:
            timeout: Simulated time to wait, or its seconds with a fraction; None: without end, as a
                hang is found when it happens.

        Raises:
            Exception: `failed`, if the time is over.
            TypeError: If `timeout` is no time.
        """
        if isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        if timeout is not None and not isinstance(timeout, timedelta):
            raise TypeError(f"wait: timeout {timeout!r}: expected a timedelta")
        names = _names(keys)
        if not self._contents.wait(
            self.calling(), lambda: KeyValues.check(self, names), timeout, names
        ):
            milliseconds = round((timeout or timedelta()).total_seconds() * 1000)
            shown = ", ".join(f"/{name}" for name in names)
            raise self.failed(f"wait timeout after {milliseconds}ms, keys: {shown}")

    def delete_key(self, key: str) -> bool:
        """Forgets a key; returns whether there was one."""
        return self._contents.values.pop(_name(key), None) is not None

    def num_keys(self) -> int:
        """Returns the number of keys."""
        return len(self._contents.values)

    def getNumKeys(self) -> int:  # noqa: N802 - by which a PrefixStore asks
        """Does what `num_keys` does."""
        return self.num_keys()

    def deleteKey(self, key: str) -> bool:  # noqa: N802 - by which a PrefixStore asks
        """Does what `delete_key` does."""
        return self.delete_key(key)

    def list_keys(self) -> list[str]:
        """Returns the keys."""
        return list(self._contents.values)

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Puts a value at the end of a queue."""
        self._contents.queues.setdefault(_name(key), []).append(_bytes(value))
        self._contents.touch()

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first value of a queue.

        Args:
            key: Name of the queue.
            block: Whether to wait for one.

        Raises:
            Exception: `empty`, if there is none and nobody waits.
        """
        queues, key = self._contents.queues, _name(key)
        if not block and not queues.get(key):
            raise self.empty("queue is empty")
        self._contents.wait(self.calling(), lambda: bool(queues.get(key)), None, [key])
        return queues[key].pop(0)

    def queue_len(self, key: str) -> int:
        """Returns the number of values in a queue."""
        return len(self._contents.queues.get(_name(key), ()))

    def has_extended_api(self) -> bool:
        """Returns True: the store can append, and read and write several values at once."""
        return True

    def clone(self) -> Any:
        """Returns the store itself, which all ranks share."""
        return self


class WithoutQueues(KeyValues):
    """Keys and values alone, as those of PyTorch's `FileStore`."""

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Raises `NotImplementedError`, as PyTorch's does."""
        raise NotImplementedError(_NO_QUEUES)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Raises `NotImplementedError`, as PyTorch's does."""
        raise NotImplementedError(_NO_QUEUES)

    def queue_len(self, key: str) -> int:
        """Raises `NotImplementedError`, as PyTorch's does."""
        raise NotImplementedError(_NO_QUEUES)


_NO_QUEUES: Final = "queue support is not implemented."
