"""Every configuration by every scheme, in every layout and type, against the whole batch."""

from collections.abc import Iterator

import pytest
from cp_cases import DTYPES, LAYOUTS, SCHEMES, Case, case, compare, run
from cp_configs import FULL, TWINS, Config

from kernbench.testing import Kernbench

# Two configurations have a window that their causal mask cuts; test_cp_sequences has the warning.
pytestmark = pytest.mark.filterwarnings("ignore:cp_attention. window_size=")

# Of what upstream calls essential, the quick ones of each kind.
ESSENTIAL = [
    *("flash_cp_2_0", "flash_cp_3_3", "fused_cp_1_0", "fused_cp_2_2", "fused_cp_2_4"),
    *("fused_cp_3_4", "fused_cp_5_1"),
]


def schemes(config: Config) -> list[str]:
    """Returns the schemes that compute a configuration: a bias goes around rings alone (B.9)."""
    return ["p2p"] if config.bias else [*SCHEMES]


def layouts(config: Config) -> list[str]:
    """Returns the layouts that a configuration has: a bias is of dense sequences (B.9)."""
    return ["bshd", "sbhd"] if config.bias else [*LAYOUTS]


def check(kernbench: Kernbench, cases: list[Case]) -> None:
    found, _ = run(kernbench, cases)
    for each, results in zip(cases, found, strict=True):
        compare(each, results)


def pairs(names: Iterator[str] | list[str]) -> list[tuple[str, str]]:
    return [(name, scheme) for name in names for scheme in schemes(TWINS[name])]


def types_in_turn(name: str, scheme: str) -> list[Case]:
    """Returns a configuration in each layout: one type, another one from layout to layout."""
    config, ranks = TWINS[name], 4 if scheme == "a2a+p2p" else 2
    start = SCHEMES.index(scheme)
    return [
        case(config, layout, scheme, DTYPES[(start + at) % len(DTYPES)], ranks)
        for at, layout in enumerate(layouts(config))
    ]


@pytest.mark.parametrize(("name", "scheme"), pairs([f"{name}_s" for name in ESSENTIAL]))
def test_essential_twins(kernbench: Kernbench, name: str, scheme: str) -> None:
    check(kernbench, types_in_turn(name, scheme))


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(TWINS)))
def test_each_twin_by_one_scheme(kernbench: Kernbench, at: int) -> None:
    name = list(TWINS)[at]
    own = schemes(TWINS[name])
    check(kernbench, types_in_turn(name, own[at % len(own)]))


@pytest.mark.at_length
@pytest.mark.parametrize(("name", "scheme"), pairs(list(TWINS)))
def test_all_twins(kernbench: Kernbench, name: str, scheme: str) -> None:
    config, ranks = TWINS[name], 4 if scheme == "a2a+p2p" else 2
    check(
        kernbench,
        [
            case(config, layout, scheme, dtype, ranks)
            for layout in layouts(config)
            for dtype in DTYPES
        ],
    )


@pytest.mark.parametrize(
    "scheme",
    [
        # It has the steps of the others.
        pytest.param(
            scheme, marks=pytest.mark.slow if scheme == "a2a+p2p" else pytest.mark.at_length
        )
        for scheme in SCHEMES
    ],
)
def test_full_sizes(kernbench: Kernbench, scheme: str) -> None:
    ranks = 4 if scheme == "a2a+p2p" else 2
    check(kernbench, [case(FULL["fused_cp_5_1"], "thd", scheme, "bfloat16", ranks)])
    check(kernbench, [case(FULL["fused_cp_5_0"], "bshd", scheme, "float16", ranks)])
