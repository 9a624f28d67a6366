"""The picture of what kernels reach of the HBM and of the engines, by hand."""

from dataclasses import replace

from kernbench.hw.explained import Resource
from kernbench.hw.programs import Occupancy
from kernbench.pages.charts import lines_html
from kernbench.pages.explanations import roofline
from kernbench.pages.page import Line, Lines
from kernbench.report.explanation import Row
from kernbench.report.nearness import Near


def row(name: str, work: dict[Resource, int], roofs: dict[Resource, int]) -> Row:
    occupancy = Occupancy(1, 4, 1, 64, 132, "warps", 1000, work, roofs, estimated=False)
    return Row(name, 1, 1000, 1.0, "HBM", 0, None, "", 0, Near(), occupancy)


# 4 bytes a ps of the HBM, 500 FLOP a ps of products, 40 of other instructions.
PRODUCT = row(
    "product",
    {"HBM": 1000, "L2": 9000, "math": 400, "tensor": 250_000},
    {"HBM": 250, "L2": 900, "math": 10, "tensor": 500},
)
SUM = row(
    "sum",
    {"HBM": 2000, "L2": 2000, "math": 4000, "tensor": 0},
    {"HBM": 500, "L2": 200, "math": 100, "tensor": 0},
)


def test_kernels_are_points_under_the_roof_of_what_they_use() -> None:
    (chart,) = roofline([PRODUCT, SUM, replace(SUM, programs=None)])

    assert isinstance(chart, Lines)
    # Roofs bend at 500 / 4 = 125 and at 40 / 4 = 10; they go from half of 2 to twice 250.
    assert [(line.name, line.points) for line in chart.lines] == [
        ("roof of HBM and tensor", [(1, 4), (125, 500), (500, 500)]),
        ("product (tensor)", [(250, 250)]),
        ("roof of HBM and math", [(1, 4), (10, 40), (500, 40)]),
        ("sum (math)", [(2, 4)]),
    ]
    text = "".join(lines_html(chart))
    assert "TFLOP/s over FLOP a byte of the HBM, both logarithmic" in text
    assert "product (tensor): 250 FLOP a byte of the HBM, 250 TFLOP/s" in text
    assert "KiB" not in text


def test_there_is_no_picture_without_kernels_that_tell() -> None:
    assert roofline([replace(SUM, programs=None)]) == []


def test_lines_over_sizes_are_over_bytes() -> None:
    text = "".join(lines_html(Lines("t", "GB/s", [Line("a", [(1024, 1), (4096, 10)], 0)])))
    assert "(GB/s over bytes, both logarithmic)" in text
    assert "a: 1 KiB, 1 GB/s" in text


def test_an_axis_is_linear_where_its_values_span_less_than_a_decade() -> None:
    lines = [Line("a", [(1024, 30), (4096, 45)], 0), Line("limit", [(1024, 60)], 0, bound=True)]
    text = "".join(lines_html(Lines("t", "GB/s", lines)))
    assert "(GB/s over bytes, which is logarithmic)" in text
    # From 0 to 60 by 20: 30 is in the middle, 45 at three quarters.
    assert 'd="M0.0 500.0L1000.0 250.0"' in text
    assert [text.count(f">{tick}</span>") for tick in (0, 20, 60, 80)] == [1, 1, 1, 0]
    assert '<path class="line bound" d="M0.0 0.0">' in text


def test_names_stand_at_the_ends_of_few_lines() -> None:
    lines = [Line(f"line {n}", [(1, 1), (2, 2)], n) for n in range(11)]
    assert "".join(lines_html(Lines("t", "GB/s", lines[:10]))).count('class="end"') == 10
    assert 'class="end"' not in "".join(lines_html(Lines("t", "GB/s", lines)))
