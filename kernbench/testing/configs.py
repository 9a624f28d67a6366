"""Registered configurations: what they hold is the same when each case begins."""

import copy
from collections.abc import MutableMapping, MutableSequence, MutableSet
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from kernbench.errors import UsageError, call_site, site_fact

T = TypeVar("T")


class _Registered(NamedTuple):
    """A configuration.

    Attributes:
        name: Its name in reports.
        config: The object.
        first: What it held when it was registered, which is what each case begins with.
    """

    name: str
    config: Any
    first: Any


_REGISTERED: Final[list[_Registered]] = []


def register_config(config: T, name: str = "") -> T:
    """Registers a configuration: each case begins with what it holds now, whatever ran before.

    After a case it holds again what it held before. So a case can neither change it for the next
    one, nor see what a test has changed, which a worker process would not see either.

    Args:
        config: A dict, list, set, module, or object with attributes; deep-copied.
        name: Its name in reports; by default that of its type.

    Returns:
        The same object, so that `CONFIG = register_config({"tile": 64})` is a line.

    Raises:
        UsageError: If it holds nothing that could be copied and put back.
    """
    __tracebackhide__ = True
    named = name or getattr(config, "__name__", type(config).__name__)
    try:
        first = copy.deepcopy(_content(config))
        hash(type(config))
    except TypeError as error:
        raise UsageError(
            f"register_config cannot keep {named}: {error}",
            [site_fact(call_site()), "expected a dict, list, set, module or object"],
        ) from None
    others = [each for each in _REGISTERED if each.config is not config]
    _REGISTERED[:] = [*others, _Registered(named, config, first)]
    return config


class Kept:
    """What the registered configurations hold at one moment."""

    def __init__(self) -> None:
        self._held = [(each, copy.deepcopy(_content(each.config))) for each in _REGISTERED]

    def restore(self) -> list[str]:
        """Puts the configurations back; returns the names of those that had changed."""
        changed = []
        for each, held in self._held:
            if not _same(_content(each.config), held):
                changed.append(each.name)
                _put(each.config, held)
        return changed


def begin_anew() -> None:
    """Gives each registered configuration what it held when it was registered."""
    for each in _REGISTERED:
        if not _same(_content(each.config), each.first):
            _put(each.config, copy.deepcopy(each.first))


def _content(config: Any) -> Any:
    """Returns what a configuration holds, as a dict, list or set; not a copy."""
    if isinstance(config, MutableMapping | MutableSequence | MutableSet):
        return config
    if isinstance(config, ModuleType):
        # Functions, classes and imported modules are code, not settings.
        return {name: value for name, value in vars(config).items() if _is_setting(name, value)}
    if isinstance(config, type):
        return {name: value for name, value in vars(config).items() if _is_setting(name, value)}
    slots = [name for kind in type(config).__mro__ for name in getattr(kind, "__slots__", ())]
    held = {name: getattr(config, name) for name in slots if hasattr(config, name)}
    held = {name: value for name, value in held.items() if not name.startswith("__")}
    if not slots and not hasattr(config, "__dict__"):
        raise TypeError(f"a {type(config).__name__} holds nothing that could change")
    return held | dict(getattr(config, "__dict__", {}))


def _is_setting(name: str, value: object) -> bool:
    return not (name.startswith("__") or callable(value) or isinstance(value, ModuleType))


def _same(content: Any, held: Any) -> bool:
    try:
        return bool(content == held)
    except Exception:
        return False  # such as arrays, of which a comparison has no truth value


def _put(config: Any, held: Any) -> None:
    if isinstance(config, MutableMapping | MutableSet):
        config.clear()
        if isinstance(config, MutableMapping):
            config.update(held)
        else:
            for each in held:
                config.add(each)
    elif isinstance(config, MutableSequence):
        config[:] = held
    else:
        for name in [name for name in _content(config) if name not in held]:
            delattr(config, name)
        for name, value in held.items():
            setattr(config, name, value)
