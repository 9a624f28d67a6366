"""Grids: how values are read, what they multiply to, what is refused before any run."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_specs import run_specs

from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec
from kernbench.sweeps import grid
from kernbench.sweeps.records import Record


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", [""]),
        ("2", ["2"]),
        ("2,4", ["2", "4"]),
        (",", ["", ""]),
        ("a b,c=d", ["a b", "c=d"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{a: [1,2], b: 1},x", ["{a: [1,2], b: 1}", "x"]),
        (r"a\,b,c", ["a,b", "c"]),
        (r"a\b\\,c", ["a\\b\\,c"]),
        ("],a", ["]", "a"]),
    ],
)
def test_values_have_commas_between(text: str, values: list[str]) -> None:
    assert grid.split(text) == values


@given(st.lists(st.text(st.characters(exclude_characters="\\[]{}()")), min_size=1))
def test_a_comma_in_a_value_is_escaped(values: list[str]) -> None:
    assert grid.split(",".join(value.replace(",", "\\,") for value in values)) == values


def test_many_values_are_read_at_once() -> None:
    values = [
        str(number) for number in range(100_000)
    ]  # in each other they are looked for in hours
    assert grid.axis_of("arg", f"-n={','.join(values)}").values == tuple(values)


def test_the_last_axis_varies_fastest() -> None:
    axes = [
        grid.axis_of("arg", "--b=1,2"),
        grid.axis_of("topology", "sip8,h200x8"),
        grid.axis_of("ccl", "x.yaml"),
        grid.axis_of("set", "system.sips.count=4,2"),
    ]
    base = RunSpec(bench="ccl", arguments=("-a",), overrides=("system.sips.network.x=1",))
    runs = grid.grid(base, axes)
    assert [tuple(run.varied.values()) for run in runs] == [
        (b, machine, count) for b in "12" for machine in ("sip8", "h200x8") for count in "42"
    ]
    assert list(runs[0].varied) == ["--b", "topology", "system.sips.count"]
    assert runs[-1].spec == RunSpec(
        bench="ccl",
        arguments=("-a", "--b", "2"),
        overrides=("system.sips.network.x=1", "system.sips.count=2"),
        topology="h200x8",
        ccl="x.yaml",
    )
    assert len({run.key for run in runs}) == len(runs)


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("set", "system.sips.count", "expected KEY=V1,V2"),
        ("set", "=1", "expected KEY=V1,V2"),
        ("arg", "--b", "expected FLAG=V1,V2"),
        ("set", "system.sips.count=", "expected at least one value"),
        ("set", "system.sips.count=1,,2", "none that is empty"),
        ("arg", "-b=1,1", "1 comes twice"),
        ("arg", "b=1", "did you mean `-b`"),
        ("arg", "bytes=1", "did you mean `--bytes`"),
        ("arg", "-1=1", "expected a flag"),
        ("topology", "", "expected at least one value"),
    ],
)
def test_values_that_are_none_are_refused(option: Any, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        grid.axis_of(option, text)


def test_a_thing_is_varied_once() -> None:
    axes = [grid.axis_of("arg", "-b=1,2"), grid.axis_of("arg", "-b=3")]
    with pytest.raises(UsageError, match="-b is varied twice"):
        grid.grid(RunSpec(bench="ccl"), axes)
    for fixed in (("-b", "4"), ("-b=4",)):
        with pytest.raises(UsageError, match="it stands among the arguments of the bench, too"):
            grid.grid(RunSpec(bench="ccl", arguments=fixed), axes[:1])


def test_a_grid_that_is_too_large_is_refused_before_it_is_made() -> None:
    axes = [
        grid.axis_of("arg", f"--{name}=" + ",".join(map(str, range(1001)))) for name in "abcdef"
    ]
    with pytest.raises(UsageError, match=r"has 1,006,\d+,\d+,\d+,\d+,\d+ runs; the most are 1,000"):
        grid.grid(RunSpec(bench="ccl"), axes)


@given(st.lists(run_specs(bench="ccl"), min_size=1, max_size=4, unique=True))
def test_a_file_of_specifications_gives_their_runs(
    tmp_path_factory: pytest.TempPathFactory, specs: list[RunSpec]
) -> None:
    path = tmp_path_factory.mktemp("specs") / "specs.json"
    runs = [{"kernbench": 1, "run": "ccl", "spec": spec.to_json(), "results": []} for spec in specs]
    for content in ([spec.to_json() for spec in specs], runs):
        path.write_text(json.dumps(content))
        assert [run.spec for run in grid.runs_of_file(path)] == specs


def test_what_specifications_vary_is_what_differs() -> None:
    specs = [
        RunSpec(bench="ccl", overrides=("system.a=1", "system.b=1"), data=False),
        RunSpec(bench="ccl", overrides=("system.b=1",), arguments=("a b",)),
    ]
    assert [run.varied for run in grid.runs_of(specs)] == [
        {"data": "false", "arguments": "", "system.a": "1"},
        {"data": "true", "arguments": "'a b'", "system.a": ""},
    ]


def test_the_file_of_a_sweep_gives_its_runs(tmp_path: Path) -> None:
    from kernbench.sweeps.documents import write_document

    runs = grid.grid(RunSpec(bench="ccl"), [grid.axis_of("arg", "-b=1,2")])
    write_document(tmp_path / "s.json", [Record(run=run, ok=True) for run in runs], 2)
    assert grid.runs_of_file(tmp_path / "s.json") == runs


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "the sweep has no runs"),
        ("nothing", "not JSON"),
        ("3", "expected a mapping"),
        ('[{"version": 2, "sed": 1}]', "run 1: 1 problem"),
        ('[{"version": 2, "bench": "a"}, {"version": 2, "bench": "a"}]', "the runs 1 and 2 are eq"),
        ('{"records": 1}', "expected a file that `kernbench sweep --json` has written"),
    ],
)
def test_files_that_hold_no_runs_are_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "specs.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=said):
        grid.runs_of_file(path)


def test_what_no_value_mends_is_refused_and_a_value_is_not() -> None:
    def check(*axes: grid.Axis, bench: str | None = "ccl") -> None:
        grid.check(grid.grid(RunSpec(bench=bench), axes))

    check(grid.axis_of("set", "system.sips.count=2,x,-1"))
    check(grid.axis_of("set", "defaults.n_slots=2,x"))
    for option, text, said in (
        ("set", "system.sips.cuont=x,y", "did you mean `count`"),
        ("set", "defaults.n_slotz=2", "did you mean `n_slots`"),
        ("topology", "sip8,sip9", "did you mean `sip8`"),
        ("ccl", "nowhere.yaml", "no such file"),
    ):
        with pytest.raises(UsageError, match=said):
            check(grid.axis_of(option, text))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bench nothing does not exist"):
        check(bench="nothing")
    with pytest.raises(UsageError, match="names a bench"):
        check(bench=None)
