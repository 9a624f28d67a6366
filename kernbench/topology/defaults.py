"""Values of a machine that follow from others, where its file does not give them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kernbench.config import Changes, value_at
from kernbench.config.schema import Names
from kernbench.topology.spec import FOLLOWS, ChangedSpec, NetworkSpec, SipSpec, SystemSpec
from kernbench.units import Bandwidth, FlopRate

_PARTS_OF_BF16: Final = {
    "fp64": (1, 32),
    "fp32": (1, 16),
    "tf32": (1, 2),
    "fp16": (1, 1),
    "bf16": (1, 1),
    "fp8": (2, 1),
    "int8": (2, 1),
    "int32": (1, 32),
}
"""Rates of products as fractions of that of bf16: NVIDIA's datasheets.

An A100 has 19.5 TFLOP/s of fp32 and 9.7 of fp64 beside 312 of bf16, half of that in tf32, and half
as many lanes for int32 as for fp32. An H100 has twice the rate of bf16 in fp8 and int8.
"""

RATES: Final = tuple(_PARTS_OF_BF16)
"""Names of the types of products that a machine may have a rate for."""

_RATE: Final = ("pe", "gemm", "rate")
_MATH_PART: Final = 32
_BYTES_OF_AN_OPERATION: Final = 2


def with_all_rates(system: SystemSpec) -> SystemSpec:
    """Returns a machine that has the rate of every type, if its file gives that of bf16 alone.

    Args:
        system: A machine as its file gives it.
    """
    rate = system.sip.pe.gemm.rate
    if rate.keys() != {"bf16"}:
        return system
    rates: Changes[SipSpec] = Changes({_RATE: _rates(rate["bf16"])})
    return replace(system, sip=rates.applied(system.sip))


def completed(system: SystemSpec) -> SystemSpec:
    """Returns a machine with every value that follows from others put in.

    In SIPs that differ it follows from their own values.

    Args:
        system: A machine as its file gives it, checked.
    """
    rates_follow = system.sip.pe.gemm.rate.keys() == {"bf16"}
    system = with_all_rates(system)
    network = system.sips.network
    plain: Changes[SipSpec] = Changes(_following(system.sip, network))
    sip = plain.applied(system.sip)
    changed = []
    for which, changes in system.sips.alike():
        own = changes.applied(system.sip)
        values = _following(own, network)
        if rates_follow:
            rates = _rates(own.pe.gemm.rate["bf16"]).items()
            values |= {(*_RATE, name): rate for name, rate in rates}
        follows = {
            names: value
            for names, value in values.items()
            if names not in changes.values and value != value_at(sip, names)
        }
        if follows:
            changed.append(ChangedSpec(which, sip=Changes(follows)))
    sips = replace(system.sips, changed=(*system.sips.changed, *changed))
    return replace(system, sip=sip, sips=sips)


def _rates(bf16: FlopRate) -> dict[str, FlopRate]:
    return {
        name: FlopRate(max(bf16.per_second * part // of, 1))
        for name, (part, of) in _PARTS_OF_BF16.items()
    }


def _following(sip: SipSpec, network: NetworkSpec) -> dict[Names, Any]:
    """Returns the values of a SIP that are not given, but for rates."""
    hbm, rate = sip.cube.hbm.bandwidth, sip.pe.gemm.rate
    fastest = rate.get("bf16") or max(rate.values())
    math = max(
        fastest.per_second // _MATH_PART,
        -(-network.fastest.per_second // _BYTES_OF_AN_OPERATION),
    )
    values: Mapping[Names, Any] = {
        ("cube", "sram", "bandwidth"): Bandwidth(2 * hbm.per_second),
        ("pe", "tcm", "bandwidth"): hbm,
        ("pe", "dma"): hbm,
        ("pe", "math"): FlopRate(math),
    }
    return {names: value for names, value in values.items() if value_at(sip, names) is FOLLOWS}
