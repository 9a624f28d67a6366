"""Registered configurations: each case begins with what they held at first."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from kernbench.errors import UsageError
from kernbench.testing import configs
from kernbench.testing.configs import Kept, begin_anew, register_config


@pytest.fixture(autouse=True)
def _no_others() -> Iterator[None]:
    before = list(configs._REGISTERED)
    configs._REGISTERED.clear()
    yield
    configs._REGISTERED[:] = before


@dataclass
class Settings:
    depth: int
    names: list[str]


class Slots:
    __slots__ = ("depth", "unset")

    def __init__(self) -> None:
        self.depth = 1


class Constants:
    DEPTH: ClassVar[list[int]] = [1]


def module() -> ModuleType:
    made = ModuleType("settings_of_a_user")
    vars(made).update(DEPTH=[1], helper=lambda: None)
    return made


def change(config: Any) -> None:
    if isinstance(config, dict):
        config["deep"].append(2)
        config["new"] = 1
        del config["old"]
    elif isinstance(config, list):
        config[0].append(2)
        config.append(3)
    elif isinstance(config, set):
        config.add(2)
    elif isinstance(config, Settings):
        config.names.append("b")
        vars(config)["new"] = 1
    elif isinstance(config, Slots):
        config.unset = 2  # type: ignore[attr-defined]
        config.depth = 3
    else:
        config.DEPTH.append(2)
        config.NEW = 1


def shown(config: Any) -> str:
    if isinstance(config, Slots):
        return repr([getattr(config, name, None) for name in Slots.__slots__])
    if isinstance(config, ModuleType | type):
        return repr((config.DEPTH, hasattr(config, "NEW")))  # type: ignore[union-attr]
    return repr((config, getattr(config, "new", None)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"deep": [1], "old": 0},
        lambda: [[1], 2],
        lambda: {1},
        lambda: Settings(1, ["a"]),
        Slots,
        module,
        lambda: Constants,
    ],
    ids=["dict", "list", "set", "object", "slots", "module", "class"],
)
def test_what_a_configuration_holds_is_put_back(make: Any) -> None:
    config = register_config(make(), "mine")
    first = shown(config)
    change(config)
    changed = shown(config)
    assert changed != first
    kept = Kept()
    begin_anew()
    assert shown(config) == first
    assert kept.restore() == ["mine"]
    assert shown(config) == changed
    assert kept.restore() == []
    begin_anew()
    assert shown(config) == first


def test_values_without_a_truth_value_are_put_back_too() -> None:
    config = register_config({"table": np.arange(3)})
    config["table"] += 1
    begin_anew()
    assert config["table"].tolist() == [0, 1, 2]


def test_a_second_registration_takes_what_it_finds() -> None:
    config = register_config([1])
    config.append(2)
    register_config(config)
    config.append(3)
    begin_anew()
    assert config == [1, 2]
    assert len(configs._REGISTERED) == 1


@pytest.mark.parametrize("wrong", [1, "text", None, (1,), {"lock": __import__("threading").Lock()}])
def test_what_cannot_be_put_back_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="register_config cannot keep"):
        register_config(wrong)
