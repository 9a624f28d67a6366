"""Parts of a dataclass in a file, put in place of those of another instance."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.config import Changes, ConfigError, Formerly, Range, load, load_with_marks
from kernbench.units import Bandwidth, FlopRate, Ps


@dataclass(frozen=True, slots=True)
class Wire:
    bandwidth: Bandwidth
    latency: Annotated[Ps, Range(0, 10**12), Formerly("delay")]


@dataclass(frozen=True, slots=True)
class Box:
    slots: int
    wire: Wire
    rate: dict[str, FlopRate]
    shape: tuple[int, int] = (1, 1)
    spare: Wire | None = None


@dataclass(frozen=True, slots=True)
class File:
    new: Changes[Box]


BASE = Box(
    4,
    Wire(Bandwidth(10**9), Ps(7)),
    {"a": FlopRate(1), "b": FlopRate(2)},
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str) -> Changes[Box]:
    Path("f.yaml").write_text(text)
    return load(File, "f.yaml")[0].new


def test_what_is_given_is_changed_and_nothing_else() -> None:
    text = "new: {wire: {latency: 9 ps}, rate: {b: 30 FLOP/s}, shape: [2, 3]}"
    changes = read(text)
    assert changes.values == {
        ("wire", "latency"): 9,
        ("rate", "b"): FlopRate(30),
        ("shape",): (2, 3),
    }
    assert changes.applied(BASE) == Box(
        4, Wire(Bandwidth(10**9), Ps(9)), {"a": FlopRate(1), "b": FlopRate(30)}, (2, 3)
    )
    assert BASE.wire.latency == 7
    assert load_with_marks(File, "f.yaml").marks["new.rate.b"].column == text.index("30") + 1


def test_nothing_is_changed_by_nothing() -> None:
    for text in ("new: {}", "new: {wire: {}, rate: {}}"):
        changes = read(text)
        assert changes.values == {}
        assert changes.applied(BASE) is BASE


def test_an_optional_part_is_changed_where_there_is_one() -> None:
    changes = read("new: {spare: {latency: 9 ps}}")
    assert list(changes.unknown(BASE)) == [("spare", "latency")]
    full = replace(BASE, spare=BASE.wire)
    assert list(changes.unknown(full)) == []
    assert changes.applied(full).spare == Wire(Bandwidth(10**9), Ps(9))
    assert list(read("new: {rate: {c: 1 FLOP/s}}").unknown(BASE)) == [("rate", "c")]


@given(st.sampled_from([4, 5]), st.sampled_from([7, 8]), st.sampled_from([2, 3]))
def test_what_the_base_has_already_makes_no_difference(slots: int, latency: int, rate: int) -> None:
    changes: Changes[Box] = Changes(
        {("slots",): slots, ("wire", "latency"): Ps(latency), ("rate", "b"): FlopRate(rate)}
    )
    left = changes.but_for(BASE)
    assert left.applied(BASE) == changes.applied(BASE)
    assert len(left.values) == (slots != 4) + (latency != 7) + (rate != 2)


def test_an_old_name_is_known_here_too() -> None:
    with pytest.warns(UserWarning, match="this key is called latency now"):
        assert read("new: {wire: {delay: 9 ps}}").values == {("wire", "latency"): 9}


def test_every_mistake_is_told_in_its_place() -> None:
    text = "new:\n  slot: 1\n  wire: {latency: 9}\n  rate: {a: [1]}\n  shape: [1]\n  spare: ~\n"
    with pytest.raises(ConfigError) as caught:
        read(text)
    told = [(p.where, p.field, p.message.split(",")[-1], p.hint) for p in caught.value.problems]
    assert told == [
        ("f.yaml:2:3", "new.slot", " got an unknown key", "did you mean `slots`?"),
        ("f.yaml:3:19", "new.wire.latency", " got 9 (a number without a unit)", ""),
        ("f.yaml:4:13", "new.rate.a", " got a list of 1", ""),
        ("f.yaml:5:10", "new.shape", " got a list of 1", ""),
        ("f.yaml:6:10", "new.spare", " got nothing", ""),
    ]
