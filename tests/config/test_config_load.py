"""YAML to dataclasses: what is accepted, and the text of what is not."""

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.config import Bare, ConfigError, Range, did_you_mean, load, load_with_marks
from kernbench.units import Bandwidth, Bytes, FlopRate, Ps

SLOT = Bytes(4096)


@dataclass(frozen=True, slots=True)
class Wire:
    bandwidth: Bandwidth
    latency: Annotated[Ps, Range(0, 10**12)]


@dataclass(frozen=True, slots=True)
class Box:
    name: str
    wire: Wire
    slots: Annotated[int, Range(1, 64)] = 4
    slot_size: Annotated[Bytes, Range(1, 10**18), Bare()] = SLOT
    room: Bytes = SLOT
    pressure: Literal["sleep", "poll"] = "sleep"
    eager: bool = False
    spare: Wire | None = None
    shape: tuple[int, int] = (1, 1)
    wires: tuple[Wire, ...] = ()
    rate: dict[str, FlopRate] | None = None


MINIMAL = "name: x\nwire: {bandwidth: 1 GB/s, latency: 2 ns}\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str, *overrides: str) -> tuple[Box, dict[str, Any]]:
    Path("box.yaml").write_text(text, encoding="utf-8")
    return load(Box, "box.yaml", overrides)


def error(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, *overrides)
    return str(caught.value)


def test_a_full_file_becomes_a_frozen_tree() -> None:
    box, raw = read(
        """\
name: "é"
wire: {bandwidth: 400 Gb/s, latency: 0.5 ps}
slots: 8
slot_size: 4 KiB
pressure: poll
eager: true
spare:
  bandwidth: 1 B/s
  latency: 0 s
shape: [2, 3]
wires:
  - {bandwidth: 1 GB/s, latency: 1 ns}
rate: {fp32: 2 TFLOP/s}
"""
    )
    assert box == Box(
        name="é",
        wire=Wire(Bandwidth(50 * 10**9), Ps(1)),
        slots=8,
        slot_size=Bytes(4096),
        pressure="poll",
        eager=True,
        spare=Wire(Bandwidth(1), Ps(0)),
        shape=(2, 3),
        wires=(Wire(Bandwidth(10**9), Ps(1000)),),
        rate={"fp32": FlopRate(2 * 10**12)},
    )
    assert raw["spare"] == {"bandwidth": "1 B/s", "latency": "0 s"}
    assert raw["shape"] == [2, 3]
    with pytest.raises(FrozenInstanceError):
        box.slots = 9  # type: ignore[misc]


def test_defaults_fill_what_a_file_leaves_out() -> None:
    box, raw = read(MINIMAL)
    assert box == Box("x", Wire(Bandwidth(10**9), Ps(2000)))
    assert raw == {"name": "x", "wire": {"bandwidth": "1 GB/s", "latency": "2 ns"}}


def test_anchors_and_merge_keys_are_expanded() -> None:
    box, raw = read(MINIMAL.replace("{", "&w {") + "spare: {<<: *w, latency: 9 ns}\nwires: [*w]\n")
    assert box.spare == Wire(Bandwidth(10**9), Ps(9000))
    assert box.wires == (box.wire,)
    assert raw["spare"] == {"bandwidth": "1 GB/s", "latency": "9 ns"}


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("4 KiB", 4096), ("0.1 KiB", 103)])
def test_a_size_may_be_bare_bytes_where_the_schema_says_so(text: str, size: int) -> None:
    assert read(f"{MINIMAL}slot_size: {text}\n")[0].slot_size == size


@given(value=st.integers(-100, 200))
def test_limits_are_inclusive(value: int) -> None:
    text = f"{MINIMAL}slots: {value}\n"
    if 1 <= value <= 64:
        assert read(text)[0].slots == value
    else:
        assert f"expected an integer from 1 to 64, got {value}" in error(text)


def test_all_problems_of_a_file_are_told_at_once_in_its_order() -> None:
    text = """\
nmae: x
wire: {bandwidth: 900 gb/s, latency: -1 ns}
slots: '8'
slot_size: 99999999 TB
pressure: poll
slots: 3
shape: [2]
"""
    assert (
        error(text)
        == """\
box.yaml: 8 problems
  box.yaml:1:1: nmae: expected one of name, wire, slots, slot_size, room, \
pressure, eager, spare, shape, wires, rate, got an unknown key [F1]
      nmae: x
      ^
      did you mean `name`?
  box.yaml:1:1: name: expected this key, got none [F1]
      nmae: x
      ^
  box.yaml:2:19: wire.bandwidth: expected a bandwidth from 1 B/s to 1000 TB/s, such as 900 GB/s, \
got text '900 gb/s' [F2]
      wire: {bandwidth: 900 gb/s, latency: -1 ns}
                        ^
      did you mean `900 GB/s`?
  box.yaml:2:38: wire.latency: expected a time from 0 s to 1 s, got -1 ns [F3]
      wire: {bandwidth: 900 gb/s, latency: -1 ns}
                                           ^
  box.yaml:3:8: slots: expected an integer from 1 to 64, got text '8' (remove the quotes) [F2]
      slots: '8'
             ^
  box.yaml:4:12: slot_size: expected a size from 1 B to 1000000 TB, got 99999999 TB [F4]
      slot_size: 99999999 TB
                 ^
  box.yaml:6:1: slots: expected each key once, got it again; first on line 3 [F6]
      slots: 3
      ^
  box.yaml:7:8: shape: expected a list of 2, got a list of 1 [F2]
      shape: [2]
             ^"""
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # F2: no coercion, and what YAML 1.1 makes of a plain word explained
        ("slots: 8.0", "expected an integer from 1 to 64, got 8.0 [F2]"),
        ("slots: true", "expected an integer from 1 to 64, got true [F2]"),
        (
            "slots: on",
            "expected an integer from 1 to 64, got on (YAML 1.1 reads on as true) [F2]",
        ),
        (
            "slots: 1e1",
            "expected an integer from 1 to 64, got text '1e1' "
            "(YAML 1.1 reads 1e1 as text: write 10) [F2]",
        ),
        (
            "slots: 0o17",
            "expected an integer from 1 to 64, got text '0o17' "
            "(YAML 1.1 reads 0o17 as text: write 15) [F2]",
        ),
        (
            "slots: 017",
            "expected an integer from 1 to 64, got 017 (YAML 1.1 reads 017 as 15, in base 8) [F2]",
        ),
        (
            "slots: 0:30",
            "expected an integer from 1 to 64, got text '0:30' [F2]",
        ),
        (
            "slots: 1:03",
            "expected an integer from 1 to 64, got 1:03 "
            "(YAML 1.1 reads 1:03 as 63, in base 60) [F2]",
        ),
        ("slots: 0x_", "expected an integer from 1 to 64, got text '0x_' [F2]"),
        ("slots:", "expected an integer from 1 to 64, got nothing [F2]"),
        ("slots: [1]", "expected an integer from 1 to 64, got a list of 1 [F2]"),
        ("eager: 'true'", "expected true or false, got text 'true' (remove the quotes) [F2]"),
        ("eager: 1", "expected true or false, got 1 [F2]"),
        ("pressure: pol", "expected one of sleep, poll, got text 'pol' [F2]"),
        ("pressure: {}", "expected one of sleep, poll, got a mapping [F2]"),
        ("spare: 7", "expected a mapping with bandwidth, latency, got 7 [F2]"),
        ("wires: 7", "expected a list, got 7 [F2]"),
        ("rate: []", "expected a mapping, got a list of 0 [F2]"),
        (
            "rate: {x: 12}",
            "expected a rate from 1 FLOP/s to 1000000 PFLOP/s, such as 6.2 TFLOP/s, got 12 "
            "(a number without a unit) [F2]",
        ),
        (
            "slot_size: 12:30",
            "expected a size from 1 B to 1000000 TB, such as 32 MiB, got 12:30 "
            "(YAML 1.1 reads 12:30 as 750, in base 60) [F2]",
        ),
        (
            "slot_size: [4 KiB]",
            "expected a size from 1 B to 1000000 TB, such as 32 MiB, got a list of 1 [F2]",
        ),
        # F3: negative, zero, not a number, infinite
        ("slots: -1", "expected an integer from 1 to 64, got -1 [F3]"),
        ("slots: .nan", "expected an integer from 1 to 64, got .nan [F3]"),
        ("slot_size: 0", "expected a size from 1 B to 1000000 TB, got 0 [F3]"),
        ("slot_size: -.inf", "expected a size from 1 B to 1000000 TB, got -.inf [F3]"),
        ("slot_size: nan KiB", "expected a size from 1 B to 1000000 TB, got nan KiB [F3]"),
        # F4: huge
        ("slots: 65", "expected an integer from 1 to 64, got 65 [F4]"),
        ("slots: " + "9" * 99, f"expected an integer from 1 to 64, got {'9' * 57}... [F4]"),
        (
            "slot_size: 1000001 TB",
            "expected a size from 1 B to 1000000 TB, got 1000001 TB [F4]",
        ),
        (
            "room: 8",
            "expected a size from 1 B to 1000000 TB, such as 32 MiB, got 8 (a number without a "
            "unit) [F2]",
        ),
        # F13: tags
        (
            "slots: !!int 8",
            "expected a value without a tag, got the tag tag:yaml.org,2002:int [F13]",
        ),
        (
            "slots: !!python/object/apply:os.getcwd []",
            "expected a value without a tag, got the tag "
            "tag:yaml.org,2002:python/object/apply:os.getcwd [F13]",
        ),
        # F7, F8: aliases
        ("spare: *wire", "alias *wire names no anchor above it [F7]"),
        (
            "spare: &s {bandwidth: *s, latency: 1 ns}",
            "alias *s stands inside the value that it names",
        ),
        ("rate: {no: 1 FLOP/s}", "expected a text as the key, got no: quote it [F2]"),
        ("rate: {[1]: 1 FLOP/s}", "expected a text as the key, got a list of 1 [F2]"),
        ("rate: {!x a: 1 FLOP/s}", "expected a value without a tag, got the tag !x [F13]"),
        ("rate: {<<: *x}", "alias *x names no anchor above it [F7]"),
        ("rate: {<<: 3}", "expected a mapping to merge, got 3 [F2]"),
    ],
)
def test_a_wrong_value_gives_one_problem(line: str, message: str) -> None:
    text = error(f"{MINIMAL}{line}\n")
    assert ": 1 problem\n" in text
    assert message in text


@pytest.mark.parametrize("word", ["no", "on", "12:30", "1.5", "~", "0x10", "true"])
def test_a_word_that_yaml_takes_for_something_else_is_no_text(word: str) -> None:
    assert "name: expected text, got" in error(MINIMAL.replace("name: x", f"name: {word}"))
    assert read(MINIMAL.replace("name: x", f"name: '{word}'"))[0].name == word


def test_an_override_replaces_and_adds() -> None:
    box, raw = read(
        MINIMAL, "slots=8", "wire.bandwidth=7 GB/s", "shape=[2, 2]", "spare.latency=1 ns",
        "spare.bandwidth=1 KB/s",
    )  # fmt: skip
    assert (box.slots, box.shape) == (8, (2, 2))
    assert box.wire == Wire(Bandwidth(7 * 10**9), Ps(2000))
    assert box.spare == Wire(Bandwidth(1000), Ps(1000))
    assert raw["slots"] == 8


def test_the_first_of_several_merged_mappings_wins() -> None:
    text = MINIMAL.replace("{", "&w {") + "wires: [&v {bandwidth: 2 GB/s, latency: 3 ns}]\n"
    assert read(text + "spare: {<<: [*v, *w]}\n")[0].spare == Wire(Bandwidth(2 * 10**9), Ps(3000))


def test_an_override_leaves_other_uses_of_an_anchor_alone() -> None:
    box, _ = read(MINIMAL.replace("{", "&w {") + "spare: *w\n", "wire.latency=9 ns")
    assert box.spare == Wire(Bandwidth(10**9), Ps(2000))


def test_wrong_overrides_are_told_with_the_problems_of_the_file() -> None:
    overrides = [
        "slotz=4",
        "slots=x",
        "slots",
        "name.first=x",
        "wire=[",
        ".=1",
        "spare.latency=1 ns",
    ]
    assert (
        error(f"{MINIMAL}eager: 3\n", *overrides)
        == """\
box.yaml: 8 problems
  box.yaml:3:8: eager: expected true or false, got 3 [F2]
      eager: 3
             ^
  --set slots: expected dotted.field=value [F2]
  --set wire=[: not YAML: while parsing a flow node, did not find expected node content [F10]
  --set .=1: expected dotted.field=value [F2]
  --set name.first=x: name: expected text, got a mapping [F2]
  --set slotz=4: slotz: expected one of name, wire, slots, slot_size, room, \
pressure, eager, spare, shape, wires, rate, got an unknown key [F1]
      did you mean `slots`?
  --set slots=x: slots: expected an integer from 1 to 64, got text 'x' [F2]
  --set spare.latency=1 ns: spare.bandwidth: expected this key, got none [F1]"""
    )


def test_an_override_may_not_be_deeper_than_a_file() -> None:
    text = error(MINIMAL, ".".join(["a"] * 65) + "=1")
    assert "expected at most 64 levels of nesting, got 65 [F9]" in text


def test_an_override_with_bytes_that_are_no_text_can_be_printed() -> None:
    text = error(MINIMAL, "name=\udcff")
    assert text.encode()
    assert "--set name=\\udcff: character U+DCFF at offset 0 is not allowed in YAML [F10]" in text


def test_a_later_check_finds_the_place_of_a_field_or_of_what_holds_it() -> None:
    Path("box.yaml").write_text(f"{MINIMAL}wires:\n  - {{bandwidth: 1 B/s, latency: 0 s}}\n")
    loaded = load_with_marks(Box, "box.yaml")
    places = {
        field: loaded.problem("F12", field, "wrong").where
        for field in ("wire.latency", "wires[0].latency", "wires[0].nothing", "wires", "spare.x")
    }
    assert places == {
        "wire.latency": "box.yaml:2:36",
        "wires[0].latency": "box.yaml:4:33",
        "wires[0].nothing": "box.yaml:4:5",
        "wires": "box.yaml:3:1",
        "spare.x": "box.yaml:1:1",
    }


def test_the_same_content_is_there_as_plain_values() -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"{MINIMAL}slots: 65\n")
    assert caught.value.code == "F4"
    assert caught.value.as_json()["problems"] == [
        {
            "code": "F4",
            "where": "box.yaml:3:8",
            "field": "slots",
            "message": "expected an integer from 1 to 64, got 65",
            "source": "slots: 65",
            "column": 8,
            "hint": "",
        }
    ]


def test_a_flood_of_problems_is_cut() -> None:
    text = error("".join(f"k{i}: 1\n" for i in range(100)))
    assert text.startswith("[F1] box.yaml: 102 problems\n")
    assert text.endswith("\n  and 52 more")


def test_a_long_line_is_cut_around_the_mistake() -> None:
    lines = error(f"rate: {{a: 1 FLOP/s, {'b' * 300}: 1 FLOP}}\n{MINIMAL}").splitlines()
    source, caret = lines[2:4]
    assert source[caret.index("^")] == "1"
    assert max(map(len, lines[2:4])) <= 110


def test_the_nearest_name_is_found_without_regard_to_case() -> None:
    assert did_you_mean("N_SLOT", ["n_slots", "name"]) == "did you mean `n_slots`?"
    assert did_you_mean("zzz", ["n_slots", "name"]) == ""
