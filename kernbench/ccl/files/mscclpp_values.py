"""The values of a plan of MSCCL++: objects, lists, numbers, names, or what is wrong with them."""

from collections.abc import Iterable
from typing import Any, Final

from kernbench.ccl.files.json_text import Item, read_json
from kernbench.ccl.files.problems import Problems
from kernbench.config.problems import short

KEYS: Final = {
    "plan": (
        *("name", "collective", "protocol", "inplace", "gpus"),
        *("reuse_resources", "num_threads_per_block", "use_double_scratch_buffer"),
        *("buffer_alignment", "min_message_size", "max_message_size"),
    ),
    "gpu": (
        *("id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels"),
        *("remote_buffers", "semaphores"),
    ),
    "threadblock": ("id", "ops", "channels", "remote_buffer_refs"),
    "op": (
        *("name", "src_buff", "dst_buff", "channel_ids", "channel_type", "reduce_op", "tbg_info"),
        *("barrier_id", "num_threadblocks", "semaphore_ids", "iter_context", "ops"),
    ),
    "buffer": ("type", "buffer_id", "switch_channel_id", "index", "size", "rank"),
}
NEEDED: Final = {"plan": 5, "gpu": 6, "threadblock": 3, "op": 1, "buffer": 0}
"""How many of the keys, from the first on, must be there."""


class Values:
    """Takes values out of a text of JSON, and collects what is wrong.

    Args:
        path: The file, for places in reports.
        text: What is in it.

    Raises:
        ConfigError: If it is no JSON.
    """

    def __init__(self, path: str, text: str) -> None:
        self.problems: Final = Problems(path, text)
        self.root: Final = read_json(self.problems, text)
        self.problems.check()

    def add(self, item: Item, field: str, text: str, code: str = "F12", hint: str = "") -> None:
        """Adds a problem; see `Problems.add`."""
        self.problems.add(item.mark, code, field, text, hint)

    def fields(self, item: Item, what: str, field: str) -> dict[str, Item]:
        """Returns an object with all keys that it needs, or {} with a problem."""
        given = item.value
        if not isinstance(given, dict):
            self.add(item, field, f"expected an object; got {short(str(given))!r}", "F2")
            return {}
        known = KEYS.get(what)
        if known is None:
            return given
        missing = [key for key in known[: NEEDED[what]] if key not in given]
        for key in missing:
            self.add(item, field, f"expected a key {key}", "F1")
        for key, each in given.items():
            if key not in known:
                self.problems.unknown(each.mark, field, key, known, "a key")
        return {} if missing else given

    def items(self, given: dict[str, Item], key: str, field: str) -> list[Item]:
        """Returns a list; an empty one if there is none, which is a problem if something is."""
        item = given.get(key)
        if item is None:
            return []
        if not isinstance(item.value, list):
            self.add(
                item, f"{field} {key}", f"expected a list; got {short(str(item.value))!r}", "F2"
            )
            return []
        return item.value

    def number(self, item: Item | None, field: str, least: int = 0, most: int | None = None) -> int:
        """Returns a number; `least` if there is none, which is a problem if there is something."""
        if item is None:
            return least
        value = item.value
        if not isinstance(value, int) or isinstance(value, bool):
            self.add(item, field, f"expected a whole number; got {short(str(value))!r}", "F2")
            return least
        if value < least or (most is not None and value > most):
            upper = "on" if most is None else f"to {most}"
            text = f"expected a number from {least} {upper}; got {value}"
            self.add(item, field, text, "F3" if most is None else "F4")
            return least
        return value

    def one_of(self, item: Item | None, field: str, known: Iterable[str]) -> str:
        """Returns a name of those that are known; the first of them if there is none."""
        names = list(known)
        if item is None:
            return names[0]
        if item.value not in names:
            self.problems.unknown(item.mark, field, str(item.value), names, "one")
            return names[0]
        return str(item.value)

    def pick(self, item: Item, known: list[Any], field: str, what: str) -> list[Any]:
        """Returns the entry of a list that an item names by its place; nothing if it is none."""
        if not known:
            self.add(item, field, f"expected one of the {what}; there is none", "F7")
            return []
        return [known[self.number(item, field, 0, len(known) - 1)]]
