"""What pictures of sweeps show, and their files."""

import re
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kernbench.errors import UsageError
from kernbench.report.placing import apart
from kernbench.run_spec import RunSpec
from kernbench.sweeps import drawing
from kernbench.sweeps.drawing import FORMATS, Plot, drawn, plot_of
from kernbench.sweeps.plots import Choice, Picture, picture_of
from kernbench.sweeps.records import Record, Run

SPEC = RunSpec(bench="folder/ccl.py", topology="sip8")


def record(varied: dict[str, str], *results: dict[str, Any], **more: Any) -> Record:
    run = Run(SPEC, varied, str(varied))
    return Record(run=run, **{"ok": True, "results": results, "sim_ps": 3_000_000, **more})


def failed(varied: dict[str, str]) -> Record:
    return record(varied, ok=False, failure={"class": "E", "summary": "no"}, report="E: no")


def picture(records: Iterable[Record], **asked: str) -> Picture:
    found = list(records)
    return picture_of(lambda: iter(found), **asked)


def tables(sizes: Iterable[int] = (1024, 2048), dtypes: Iterable[str] = ("float",)) -> Any:
    return {
        "machine": "sip8",
        "average_busbw_gb_per_s": 1.5,
        "rows": [
            {
                "size_bytes": size,
                "type": dtype,
                "out_of_place": {"time_us": size / 512, "busbw_gb_per_s": size / 1000},
                "in_place": {"time_us": size / 256, "busbw_gb_per_s": size / 2000},
            }
            for dtype, size in product(dtypes, sizes)
        ],
    }


def test_sizes_have_their_bandwidth_with_a_line_for_each_of_what_varies() -> None:
    shown = picture(record({"system.sips.count": n}, tables()) for n in ("2", "4"))
    assert shown.choice == Choice(
        "size_bytes", "out_of_place.busbw_gb_per_s", ("system.sips.count",)
    )
    assert [(line.label, line.xs, line.ys) for line in shown.lines] == [
        ("2", (1024.0, 2048.0), (1.024, 2.048)),
        ("4", (1024.0, 2048.0), (1.024, 2.048)),
    ]
    assert (shown.x_unit, shown.y_unit) == ("B", "GB/s")
    assert (shown.title, shown.caption) == ("ccl on sip8", "2 runs")


def test_bus_bandwidths_have_the_bounds_of_their_links() -> None:
    runs = [
        record({"n": n}, {**tables(), "link_bound_gb_per_s": bound})
        for n, bound in (("1", None), ("2", 50.0), ("3", 25.5), ("4", 50.0))
    ]
    assert picture(runs).bounds == (25.5, 50.0)
    assert picture(runs, y="time_us").bounds == ()


def test_a_number_that_varies_has_the_first_time() -> None:
    shown = picture(record({"--op": "a", "n": n}, tables([64])) for n in ("16", "4"))
    assert shown.choice == Choice("n", "out_of_place.time_us", ())
    assert shown.xs == (4.0, 16.0)
    assert shown.lines[0].ys == (0.125, 0.125)


def test_without_results_there_is_the_simulated_time_in_us() -> None:
    shown = picture(record({"n": n}) for n in "12")
    assert (shown.choice.y, shown.lines[0].ys, shown.y_unit) == ("sim_ps", (3.0, 3.0), "us")


@pytest.mark.parametrize(
    ("values", "xs", "unit"),
    [
        (("100ns", "1 us"), (0.1, 1.0), "us"),
        (("1KiB", "2KiB"), (1024.0, 2048.0), "B"),
        (("400 GB/s", "3 TB/s"), (400.0, 3000.0), "GB/s"),
        (("0.5", "2"), (0.5, 2.0), ""),
        (("tree", "ring"), ("tree", "ring"), ""),
        (("1", "auto"), ("1", "auto"), ""),
        (("nan", "1"), ("nan", "1"), ""),
    ],
)
def test_texts_are_numbers_if_all_of_them_are(
    values: tuple[str, str], xs: tuple[float, float], unit: str
) -> None:
    shown = picture([record({"key": value}) for value in values])
    assert (shown.xs, shown.x_unit) == (xs, unit)


def test_texts_of_rows_have_lines_where_points_would_fall_together() -> None:
    both = picture([record({"n": "1"}, tables(dtypes=["float", "half"]))])
    assert both.choice.hue == ("type",)
    assert [line.label for line in both.lines] == ["float", "half"]
    asked = picture([record({"n": n}, tables([64])) for n in "1222"], hue="machine")
    assert asked.choice.hue == ("machine",)


def test_points_that_fall_together_are_their_mean_and_their_ends() -> None:
    records = [record({"n": "1", "m": m}, {"us": us}) for m, us in (("1", 2.0), ("2", 6.0))]
    (line,) = picture(records, x="n", y="us", hue="run").lines
    assert (line.ys, line.least, line.most) == ((4.0,), (2.0,), (6.0,))
    assert "their mean, the least and the largest" in picture(records, x="n", hue="run").caption


def test_runs_that_failed_are_left_out_and_counted() -> None:
    shown = picture([record({"n": "1"}), failed({"n": "2"}), record({"n": "3"})])
    assert shown.xs == (1.0, 3.0)
    assert shown.caption == "3 runs, of which 1 failed and is left out"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"x": "siz_bytes"}, r"--x siz_bytes: .*(.|\n)*did you mean `size_bytes`\?"),
        ({"y": "busbw"}, r"--y busbw: the table has no such column"),
        ({"hue": "typ"}, r"did you mean `type`\?"),
        ({"x": "n", "y": "n"}, "--x and --y are both n"),
        ({"y": "type"}, "--y type: no row has numbers in type over size_bytes"),
    ],
)
def test_columns_that_cannot_be_drawn_are_refused(asked: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        picture([record({"n": n}, tables()) for n in "12"], **asked)


def test_the_end_of_a_column_is_enough() -> None:
    shown = picture([record({"n": n}, tables()) for n in "12"], y="time_us", x="n")
    assert shown.choice.y == "out_of_place.time_us"


@pytest.mark.parametrize("records", [[], [failed({"n": "1"})], [record({"n": "1"})]])
def test_nothing_to_draw_is_told(records: list[Record]) -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        picture(records)


def test_too_many_lines_are_refused_if_asked_for_and_else_put_together() -> None:
    records = [record({"a": str(n), "b": str(n % 5), "x": str(n % 2)}) for n in range(30)]
    with pytest.raises(UsageError, match="a has 30 values, and the most lines are 24"):
        picture(records, x="b", hue="a")
    assert picture(records, x="x").choice.hue == ()


def test_a_picture_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UsageError, match=r"expected a name that ends in one of \.png, \.svg, \.pdf"
    ):
        Plot(path=tmp_path / "a.gif").check()
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        Plot(path=tmp_path / "a.png").check()
    monkeypatch.setattr(drawing, "find_spec", lambda name: name)
    with pytest.raises(UsageError, match="cannot write"):
        Plot(path=tmp_path / "none" / "a.png").check()
    Plot(path=tmp_path / "a.PNG").check()
    with pytest.raises(UsageError, match=r"--hue n: there is no picture\n.*--plot FILE draws one"):
        plot_of(None, None, None, "n")


SHOWN: dict[str, Callable[[], list[Record]]] = {
    "sizes": lambda: [record({"n": n}, tables([1 << k for k in range(20)])) for n in "1234567891"],
    "texts": lambda: [
        record({"--op": op, "--n": n}, {"us": 1.0 + len(op)}) for op in ("a", "bc") for n in "12"
    ],
    "bands": lambda: [
        record({"n": n, "m": m}, {"us": int(n) + int(m)}) for n in "123" for m in "12"
    ],
    "zero": lambda: [record({"n": n}, {"us": 0.0}) for n in "12"],
    "failed": lambda: [*(record({"n": n}) for n in "12"), failed({"n": "3"})],
}


@pytest.mark.plot
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", SHOWN)
def test_equal_records_give_equal_files(name: str, suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    asked = {"bands": {"x": "n", "hue": "run"}}.get(name, {})
    paths = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    for path in paths:
        Plot(path=path, **asked).write(SHOWN[name])
    one, other = (path.read_bytes() for path in paths)
    assert one == other
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert one.startswith(begins[suffix])
    assert b"20" + b"26-" not in one
    assert not re.search(rb"/CreationDate|<dc:date>", one)


@pytest.mark.plot
def test_a_picture_does_not_read_the_settings_of_the_user() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    shown = picture(SHOWN["sizes"]())
    plain = drawn(shown, ".svg")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        assert drawn(shown, ".svg") == plain


@pytest.mark.plot
def test_all_that_is_shown_is_in_the_picture() -> None:
    pytest.importorskip("matplotlib")
    text = drawn(picture([*SHOWN["texts"](), failed({"--op": "d"})]), ".svg").decode()
    shown = set(re.findall(r"<!-- (.+?) -->", text))  # texts are outlines, with comments
    assert {"a", "bc", "- -op", "time (us)", "ccl on sip8"} <= shown
    assert "5 runs, of which 1 failed and is left out; times are simulated" in shown


@pytest.mark.plot
def test_sizes_that_double_are_equally_far_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    drawn_on: list[Any] = []
    add = figure.Figure.add_subplot

    def kept(self: Any) -> Any:
        drawn_on.append(add(self))
        return drawn_on[-1]

    monkeypatch.setattr(figure.Figure, "add_subplot", kept)
    sizes = [1 << 16, 1 << 18, 1 << 20, 1 << 22]
    drawn(picture([record({"n": "1"}, tables(sizes))]), ".svg")
    assert drawn_on[0].get_xscale() == "log"


def test_the_first_factor_is_the_colour_and_the_second_the_dash() -> None:
    grid = product(("2", "4"), ("ring", "tree"))
    rows = [record({"n": n, "algorithm": name}, tables()) for n, name in grid]
    styles = drawing.styles_of(picture(rows).lines)
    blue, orange = drawing.COLOURS[:2]
    assert [(style.colour, style.dash) for style in styles] == [
        (blue, "-"), (blue, "--"), (orange, "-"), (orange, "--"),
    ]  # fmt: skip
    one = drawing.styles_of(picture([record({"n": n}, tables()) for n in "248"]).lines)
    assert [style.colour for style in one] == [*drawing.COLOURS[:3]]
    assert {style.dash for style in one} == {"-"}


def test_names_at_ends_of_lines_keep_their_distance_and_their_order() -> None:
    places = apart([0.5, 0.25, 0.5, 1.0, 1.0], 0.125)
    assert places == [0.5, 0.25, 0.625, 0.875, 1.0]
    assert apart([], 0.1) == []
