"""`torch.distributed.Store` in this process: what a rank lacks parks it, and nobody else."""

from typing import Any

import torch.distributed as dist

from kernbench.bridge.here import this_rank
from kernbench.des import Event


class SimStore(dist.Store):
    """Keys and values that all ranks share; it takes no simulated time."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._changed = Event("a key of the store")

    def _touch(self) -> None:
        changed, self._changed = self._changed, Event("a key of the store")
        changed.settle(0)

    def set(self, key: str, value: str | bytes) -> None:
        """Writes a value."""
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
        self._touch()

    def get(self, key: str) -> bytes:
        """Returns a value; waits until there is one."""
        self.wait([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, which is 0 at first; returns the sum."""
        total = int(self._values.get(key, b"0")) + amount
        self.set(key, str(total))
        return total

    def append(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a value."""
        more = value.encode() if isinstance(value, str) else bytes(value)
        self.set(key, self._values.get(key, b"") + more)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Writes a value if the present one is `expected`; returns the value that is there then.

        Args:
            key: Name of the value.
            expected: The value that must be there; empty: none.
            desired: The value to write.
        """
        present = self._values.get(key)
        if (present is None and not expected) or present == expected.encode():
            self.set(key, desired)
        return self._values.get(key, expected.encode())

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Returns several values; waits until all are there."""
        self.wait(keys)
        return [self._values[key] for key in keys]

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """Writes several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def check(self, keys: list[str]) -> bool:
        """Returns whether all keys have a value."""
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        """Waits until all keys have a value.

        Args:
            keys: The keys.
            timeout: Ignored by design: a hang is found when it happens, not after a time.
        """
        del timeout
        while not self.check(keys):
            this_rank().process.wait(self._changed)

    def delete_key(self, key: str) -> bool:
        """Forgets a key; returns whether there was one."""
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """Returns the number of keys."""
        return len(self._values)

    def set_timeout(self, timeout: Any) -> None:
        """Does nothing, by design: a hang is found when it happens, not after a time."""

    def clone(self) -> "SimStore":
        """Returns the store itself, which all ranks share."""
        return self
