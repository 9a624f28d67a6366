"""Algorithms written as MSCCL XML: proved again, run again, and drawn."""

from collections.abc import Callable
from xml.etree import ElementTree

import ccl_files
import numpy as np
import pytest
from ccl_operations import draw, even, execute, expected

from kernbench.ccl.config import choose, load_ccl, shipped_ccl_file
from kernbench.ccl.files import msccl_xml
from kernbench.ccl.files.lower import lower
from kernbench.ccl.files.picture import as_svg, as_text, levels
from kernbench.ccl.files.program import Program
from kernbench.ccl.files.prove import prove
from kernbench.ccl.files.write import as_xml
from kernbench.ccl.plan import Plan
from kernbench.ccl.programs import programs_of
from kernbench.errors import UnsupportedError
from kernbench.topology import Topology

SHIPPED = load_ccl(shipped_ccl_file())
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def plans_of(topology: Topology, name: str, operation: str, ranks: int) -> list[Plan]:
    chosen = choose(SHIPPED, shipped_ccl_file(), name)
    if not chosen.implements(operation):
        return []
    sips = tuple(range(ranks))
    programs = programs_of(chosen, operation, topology, sips, 0, lambda _channels: 1)
    return [program.plan for program in programs if program.plan is not None]


@pytest.mark.parametrize("name", SHIPPED.value.algorithms)
def test_shipped_algorithms_are_proved_again(
    topology: Callable[[str], Topology], name: str
) -> None:
    for operation in OPERATIONS:
        for ranks in (2, 4, 8):
            plans = plans_of(topology("sip8"), name, operation, ranks)
            if plans:
                file = msccl_xml.read("a.xml", as_xml(name, operation, plans))
                assert (file.operation, file.ranks) == (operation, ranks)
                assert prove(file, 8).findings == ()


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ring_two_way", "all_reduce"),
        ("double_binary_tree", "all_reduce"),
        ("halving_doubling", "reduce_scatter"),
        ("direct", "all_gather"),
        ("pairwise", "all_to_all"),
    ],
)
def test_what_is_written_computes_the_same(
    topology: Callable[[str], Topology], name: str, operation: str
) -> None:
    text = as_xml(name, operation, plans_of(topology("sip8"), name, operation, 4))
    program = Program(lower(msccl_xml.read("a.xml", text)))
    case = even(operation, 4, 50, slot=8)
    given = draw(case)
    result = execute(program, case, given)
    for taken, wanted in zip(result.taken, expected(case, given), strict=True):
        np.testing.assert_array_equal(taken, wanted)


def test_operations_that_no_file_has_are_refused(topology: Callable[[str], Topology]) -> None:
    with pytest.raises(UnsupportedError, match="broadcast is not written"):
        as_xml("chain", "broadcast", plans_of(topology("sip8"), "chain", "broadcast", 4))


def test_levels_are_the_longest_chains_of_steps() -> None:
    file = msccl_xml.read("a.xml", ccl_files.all_pairs_all_reduce(2).text)
    # Of rank 0: it sends, receives what rank 1 sent, waits for the sum (level 2), and so on.
    assert levels(file)[:2] == [[0, 1, 3, 4], [2]]
    assert as_text(file, [0]) == [
        "rank 0 block 0 to 1 from 1, channel 0      s    r    .    s    r",
        "rank 0 block 1, channel 0                  .    .    re",
    ]


def test_a_picture_says_which_blocks_wait_for_ever() -> None:
    xml = ccl_files.ring_all_reduce(2)
    xml.gpus[1][0].remove(xml.gpus[1][0][0])  # rank 1 sends no chunk before it receives one
    for number, step in enumerate(xml.gpus[1][0]):
        step.set("s", str(number))
    file = msccl_xml.read("a.xml", xml.text)
    held = "waits for ever at step 2: r -> o[0]"
    assert as_text(file, range(2)) == [
        f"rank 0 block 0 to 1 from 1, channel 0      s    .    rrcs {held}",
        "rank 1 block 0 to 0 from 0, channel 0      .    rrcs .    r",
    ]
    assert "waits for ever at step 2: r -&gt; o[0]" in as_svg(file, [0])


def test_a_picture_has_a_box_for_each_step() -> None:
    file = msccl_xml.read("a.xml", ccl_files.ring_all_reduce(3).text)
    root = ElementTree.fromstring(as_svg(file, range(3)))
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 3 * 5
    assert titles[1] == "step 1, line 5: rrs i[2]"
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    # The last of a rank's 5 steps begins at level 4. Below the rows is what colours mean.
    assert texts[2:7] == ["0", "1", "2", "3", "4"]
    assert texts[-5:] == [
        "sends",
        "receives",
        "receives, sends",
        "receives, adds, sends",
        "receives, adds, keeps, sends",
    ]
