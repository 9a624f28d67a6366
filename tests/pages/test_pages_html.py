"""Pages as HTML: well formed, escaped, self-contained, bounded."""

import html
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import read

from kernbench.errors import UsageError
from kernbench.pages.escaping import cut, escaped
from kernbench.pages.html import page_html, write_page
from kernbench.pages.page import (
    Bar,
    Bars,
    Cell,
    Code,
    Facts,
    Figure,
    Fold,
    Line,
    Lines,
    Note,
    Page,
    Part,
    Section,
    Strip,
    Strips,
    Table,
    Verdict,
    number_cell,
    time_cell,
)
from kernbench.pages.runs import Run, of_run
from kernbench.pages.scales import log_place, rate_axis, size_axis, time_ticks
from kernbench.sim_engine.op_log import OpLog, Record
from kernbench.topology import load_topology

EVIL = "</script><script>alert(1)</script>\"'<img src=x onerror=alert(1)>&lt;\x00\x1b\u202e\ud800"


def every_part(text: str) -> list[Part]:
    """Returns a part of each kind, with a text in each place that takes one."""
    return [
        Note(text),
        Code(text, text),
        Facts([(text, text)]),
        Table(
            [text],
            [[Cell(text, title=text, code=True)], [Cell(text, 1, bad=True)]],
            text,
            ((text, 1),),
        ),
        Bars(text, [text, text], [Bar(text, [1, 2], 3)], text),
        Strips(text, 0, 10, 100, "%", [Strip(text, [0, 500], text)]),
        Lines(text, text, [Line(text, [(1, 1.0), (2, 3.0)], 0)]),
        Fold(text, [Note(text)]),
        Verdict(text, [Figure(text, text, text)]),
    ]


def whole(page: Page) -> str:
    return "".join(page_html(page))


def test_a_text_of_a_user_is_never_markup() -> None:
    plain = whole(Page("t", ["f"], [Section("Part", every_part("text"))], "failed"))
    evil = whole(Page(EVIL, [EVIL], [Section("Part", every_part(EVIL))], EVIL))
    assert read(evil).tags == read(plain).tags
    assert "\x00" not in evil
    assert "\u202e" not in evil
    evil.encode()
    shown = EVIL.translate(dict.fromkeys([0, 0x1B, 0x202E, 0xD800], 0xFFFD))
    assert read(evil).text.count(shown) >= 15
    assert shown in read(evil).titles


@given(st.text())
def test_escaped_text_is_read_back(text: str) -> None:
    shown = escaped(text)
    assert not set("<>\"'") & set(shown)
    back = html.unescape(shown)
    for before, after in zip(text.replace("\r\n", "\n"), back, strict=True):
        assert after in {before, "\ufffd"}


def test_long_names_lose_their_middle() -> None:
    assert cut("x" * 300) == "x" * 300
    assert cut("a" * 300 + "b" * 300) == "a" * 148 + "..." + "b" * 148
    reader = read(whole(Page("p", [], [Section("S", [Table(["c"], [[Cell("y" * 9000)]])])])))
    assert max(map(len, reader.titles)) == 599
    assert len(reader.text) < 1000


def test_a_page_opens_without_a_network_in_light_and_dark_and_on_paper() -> None:
    text = whole(Page("t", [], [Section("Part", every_part("text"))]))
    read(text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "@media (max-width" in text
    assert 'name="viewport"' in text


def test_an_empty_page_is_a_page() -> None:
    assert "nothing" in read(whole(Page("nothing", [], []))).text


def test_columns_of_numbers_are_sorted_by_their_values() -> None:
    rows = [[time_cell(1_500_000), number_cell(None)], [time_cell(2), number_cell(None)]]
    text = whole(Page("t", [], [Section("S", [Table(["a", "b"], rows)])]))
    assert '<td class="n" data-n="1500000">1.5 us</td>' in text
    assert '<td class="n">-</td>' in text, "figures that nobody knows stand like figures"


def test_equal_pages_are_equal_files_and_replace_what_was_there(tmp_path: Path) -> None:
    page = Page("t", [], [Section("Part", every_part(EVIL))])
    first, second = tmp_path / "a.html", tmp_path / "b.html"
    second.write_text("before")
    write_page(first, page)
    write_page(second, page)
    assert first.read_bytes() == second.read_bytes() == whole(page).encode()
    with pytest.raises(UsageError, match="cannot write"):
        write_page(tmp_path, page)


@given(st.integers(0, 10**15), st.integers(1, 10**16))
def test_ticks_of_time_lie_on_the_axis(start: int, span: int) -> None:
    ticks = time_ticks(start, start + span)
    assert len(ticks) <= 7
    assert all(0 <= place <= 1 for place, _ in ticks)
    assert [place for place, _ in ticks] == sorted({place for place, _ in ticks})
    assert span < 2 or ticks


@given(st.lists(st.integers(1, 1 << 50), min_size=1))
def test_an_axis_of_sizes_holds_all_sizes(sizes: list[int]) -> None:
    low, high, ticks = size_axis(sizes)
    assert low <= min(sizes) <= max(sizes) <= high
    assert low < high
    assert 1 <= len(ticks) <= 10
    assert all(0 <= log_place(value, low, high) <= 1 for value, _ in ticks)


@given(st.lists(st.floats(1e-6, 1e9), min_size=1))
def test_an_axis_of_rates_holds_all_rates(rates: list[float]) -> None:
    low, high, ticks = rate_axis(rates)
    assert low <= min(rates) * (1 + 1e-6)
    assert max(rates) <= high * (1 + 1e-6)
    assert low < high
    assert len(ticks) <= 8
    assert all(math.isfinite(log_place(value, low, high)) for value, _ in ticks)


def test_the_page_of_a_long_run_of_many_ranks_is_bounded() -> None:
    topology = load_topology("ring1024").topology_obj
    links = [link.name for link in topology.links]
    rng = random.Random(5)
    log = OpLog("full")
    tracks = ["stream 0", "pe0.gemm", "pe1.math", "dma.send", "pe2.dma.load", "dma1.send"]
    for number in range(12_000):
        start = rng.randrange(10**9)
        track = tracks[number % len(tracks)]
        log.add(
            Record(
                f"op {number}",
                "send" if "send" in track else "compute",
                number % 1024,
                track,
                start,
                start,
                start + rng.randrange(10**6),
                args={"bytes": 4096, "links": [links[number % len(links)]]},
                ranges=(f"layer {number % 500}",),
            )
        )
    for number in range(5000):
        log.add_memory(number % 1024, 512)
    log.dropped = 77
    page = of_run(Run(document={"run": "long"}, op_log=log, topology=topology))
    text = whole(page)
    assert len(text) < 3_000_000
    shown = read(text).text
    for said in (
        "first 12000 records of 12077",
        "of 1024 ranks are shown",
        "Busy for less than 0.5 % of the time, 1024: ",
        "of 1024 devices are shown",
        "of 501 ranges are shown",
    ):
        assert said in shown, said
