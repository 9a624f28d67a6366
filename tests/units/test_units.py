"""Quantities: exact, rounded up, refused when the unit is wrong."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import units
from kernbench.units import Bandwidth, FlopRate, Frequency, Rate, UnitError, Units

ROOMS = [
    (units.parse_time, units.TIME_UNITS),
    (units.parse_bytes, units.BYTE_UNITS),
    (units.parse_bandwidth, units.BANDWIDTH_UNITS),
    (units.parse_flop_rate, units.FLOP_RATE_UNITS),
    (units.parse_frequency, units.FREQUENCY_UNITS),
]


def amount(value: int | Rate) -> int:
    return value.per_second if isinstance(value, Rate) else value


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (units.parse_time, "1.2 us", 1_200_000),
        (units.parse_time, "0.5 ps", 1),
        (units.parse_time, "1.0001 ns", 1001),
        (units.parse_time, "0 ns", 0),
        (units.parse_bytes, "32 MiB", 32 << 20),
        (units.parse_bytes, "1.5KB", 1500),
        (units.parse_bytes, "0.1 KiB", 103),
        (units.parse_bandwidth, "900 GB/s", Bandwidth(900 * 10**9)),
        (units.parse_bandwidth, "400 Gb/s", Bandwidth(50 * 10**9)),
        (units.parse_flop_rate, " 6.2 TFLOP/s ", FlopRate(6_200 * 10**9)),
        (units.parse_flop_rate, "1e-3 PFLOP/s", FlopRate(10**12)),
        (units.parse_frequency, "1.98 GHz", Frequency(198 * 10**7)),
    ],
)
def test_a_text_becomes_an_exact_integer_rounded_up(
    parse: Callable[[str], int | Rate], text: str, expected: int | Rate
) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "12", "us", "1,5 us", "nan us", "inf us", "1 2 us", "0x1 us", "٣ us", "1" * 41 + "us"],
)
def test_what_is_no_number_with_a_unit_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="expected a number and a unit"):
        units.parse_time(text)


def test_the_units_of_another_quantity_are_refused() -> None:
    with pytest.raises(UnitError) as caught:
        units.parse_time("3 GB/s")
    assert str(caught.value) == "unknown unit 'GB/s' in '3 GB/s'; known here: ps, ns, us, ms, s"


@given(
    number=st.decimals(0, 10**6, allow_nan=False, allow_infinity=False, places=4),
    room=st.sampled_from(ROOMS),
    data=st.data(),
)
def test_rounding_is_up_and_by_less_than_one(
    number: object, room: tuple[Callable[[str], int | Rate], Units], data: st.DataObject
) -> None:
    parse, scales = room
    unit = data.draw(st.sampled_from(sorted(scales)))
    assert amount(parse(f"{number} {unit}")) == ceil(Fraction(str(number)) * scales[unit])


@given(amount=st.integers(0, 10**18), rate=st.integers(1, 10**15))
def test_a_duration_is_rounded_up(amount: int, rate: int) -> None:
    assert Rate(rate).duration_ps(amount) == ceil(Fraction(amount * 10**12, rate))


@given(number=st.integers(0, 10**20), room=st.sampled_from(ROOMS))
def test_an_exact_text_reads_back_as_what_it_was(
    number: int, room: tuple[Callable[[str], int | Rate], Units]
) -> None:
    parse, scales = room
    assert amount(parse(units.format_exact(number, scales))) == number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_time(999), "999 ps"),
        (units.format_time(1_234_567), "1.235 us"),
        (units.format_time(2 * 10**12), "2 s"),
        (units.format_bytes(1023), "1023 B"),
        (units.format_bytes(3 << 19), "1.5 MiB"),
    ],
)
def test_what_people_read(text: str, expected: str) -> None:
    assert text == expected
