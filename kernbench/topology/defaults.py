"""Values of a machine that follow from others, where its file does not give them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kernbench.config import Changes, value_at
from kernbench.config.schema import Names
from kernbench.topology.spec import FOLLOWS, ChangedSpec, NetworkSpec, SipSpec, SystemSpec
from kernbench.units import Bandwidth, FlopRate

_PARTS: Final = {
    "bf16": 32,
    "fp16": 32,
    "fp8": 64,
    "int8": 64,
    "tf32": 16,
    "fp32": 2,
    "fp64": 1,
    "int32": 1,
}
"""Rates of products in proportion, those that say most of the others first: NVIDIA's datasheets.

An A100 has 19.5 TFLOP/s of fp32 and 9.7 of fp64 beside 312 of bf16, half of that in tf32, and half
as many lanes for int32 as for fp32. An H100 has twice the rate of bf16 in fp8 and int8.
"""

RATES: Final = tuple(_PARTS)
"""Names of the types of products that a machine may have a rate for."""

_RATE: Final = ("pe", "gemm", "rate")
_MATH_PART: Final = 32
_BYTES_OF_AN_OPERATION: Final = 2


def with_all_rates(system: SystemSpec) -> SystemSpec:
    """Returns a machine with a rate of products of every type.

    Args:
        system: A machine as its file gives it.
    """
    rates: Changes[SipSpec] = Changes({_RATE: _rates(system.sip.pe.gemm.rate)})
    return replace(system, sip=rates.applied(system.sip))


def completed(system: SystemSpec) -> SystemSpec:
    """Returns a machine with every value that follows from others put in.

    In SIPs that differ it follows from their own values.

    Args:
        system: A machine as its file gives it, checked.
    """
    given = system.sip.pe.gemm.rate
    system = with_all_rates(system)
    network = system.sips.network
    plain: Changes[SipSpec] = Changes(_following(system.sip, network))
    sip = plain.applied(system.sip)
    changed = []
    for which, changes in system.sips.alike():
        own = changes.applied(system.sip)
        own_rates = {
            name: rate
            for name, rate in own.pe.gemm.rate.items()
            if name in given or (*_RATE, name) in changes.values
        }
        rates: dict[Names, Any] = {(*_RATE, name): rate for name, rate in _rates(own_rates).items()}
        follows = {
            names: value
            for names, value in (_following(own, network) | rates).items()
            if names not in changes.values and value != value_at(sip, names)
        }
        if follows:
            changed.append(ChangedSpec(which, sip=Changes(follows)))
    sips = replace(system.sips, changed=(*system.sips.changed, *changed))
    return replace(system, sip=sip, sips=sips)


def _rates(given: Mapping[str, FlopRate]) -> dict[str, FlopRate]:
    """Returns the given rates, and those that follow from the first of them in order of `RATES`."""
    known = next(name for name in RATES if name in given)
    rates = dict(given)
    for name, part in _PARTS.items():
        # Without a rate of its own, tf32 has that of fp32, if the file gives one.
        if name not in given and (name != "tf32" or "fp32" not in given):
            rates[name] = FlopRate(max(given[known].per_second * part // _PARTS[known], 1))
    return rates


def _following(sip: SipSpec, network: NetworkSpec) -> dict[Names, Any]:
    """Returns the values of a SIP that are not given, but for rates."""
    hbm = sip.cube.hbm.bandwidth
    math = max(
        sip.pe.gemm.rate["bf16"].per_second // _MATH_PART,
        -(-network.fastest.per_second // _BYTES_OF_AN_OPERATION),
    )
    values: Mapping[Names, Any] = {
        ("cube", "sram", "bandwidth"): Bandwidth(2 * hbm.per_second),
        ("pe", "tcm", "bandwidth"): hbm,
        ("pe", "dma"): hbm,
        ("pe", "math"): FlopRate(math),
    }
    return {names: value for names, value in values.items() if value_at(sip, names) is FOLLOWS}
