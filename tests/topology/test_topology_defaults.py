"""Machines whose files leave out what has a default: what they get, and that nothing is slow."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench.cli.machines import MINIMAL
from kernbench.config import ConfigError
from kernbench.testing import Kernbench
from kernbench.topology import Topology, load_topology
from kernbench.units import Bandwidth, FlopRate

LINK = 450e9
HBM = 3.35e12
PEAK = 132 * 7.49e12

NETWORK = "network: {kind: switch, bandwidth: 450 GB/s, latency: 500 ns}"

AUTO = "defaults.algorithm=auto"


@pytest.fixture
def minimal(tmp_path: Path) -> Callable[..., str]:
    """Writes the minimal machine, with some texts replaced; returns its path."""

    def write(changes: dict[str, str] | None = None) -> str:
        text = MINIMAL.format(name="mine")
        for old, new in (changes or {}).items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        return str(file)

    return write


def loaded(file: str, *overrides: str) -> Topology:
    return load_topology(file, overrides).topology_obj


def test_twelve_lines_make_a_machine(minimal: Callable[..., str]) -> None:
    lines = Path(minimal()).read_text().splitlines()
    assert len([line for line in lines if not line.strip().startswith("#")]) <= 12
    machine = loaded(minimal())
    assert (machine.name, machine.world_size, machine.num_pes(0)) == ("mine", 8, 132)


@pytest.mark.parametrize(
    "line",
    [
        "  name: mine\n",
        "    count: 8\n",
        f"    {NETWORK}\n",
        "kind: switch, ",
        "bandwidth: 450 GB/s, ",
        ", latency: 500 ns",
        "      pes: 132                  # processing elements: the SMs of a GPU\n",
        "capacity: 80 GB, ",
        ", bandwidth: 3.35 TB/s",
        "bf16: 7.49 TFLOP/s",
        "rate: {bf16: 7.49 TFLOP/s}",
    ],
)
def test_what_nobody_can_guess_is_asked_for(minimal: Callable[..., str], line: str) -> None:
    file = minimal({line: ""})
    with pytest.raises(ConfigError, match=r"got none \[F1\]") as caught:
        load_topology(file)
    assert caught.value.codes == ("F1",)


def test_what_follows_from_other_values(minimal: Callable[..., str]) -> None:
    sip = loaded(minimal()).machine.system.sip
    hbm = sip.cube.hbm.bandwidth
    assert sip.cube.sram.bandwidth == Bandwidth(2 * hbm.per_second)
    assert sip.pe.tcm.bandwidth == sip.pe.dma == hbm
    assert sip.pe.math == FlopRate(7_490 * 10**9 // 32)
    tera = {name: rate.per_second / 7.49e12 for name, rate in sip.pe.gemm.rate.items()}
    assert tera == {
        "fp64": 1 / 32,
        "fp32": 1 / 16,
        "tf32": 1 / 2,
        "fp16": 1,
        "bf16": 1,
        "fp8": 2,
        "int8": 2,
        "int32": 1 / 32,
    }


@pytest.mark.parametrize(
    ("network", "link"),
    [
        ("{kind: switch, bandwidth: 800 GB/s, latency: 1 us}", 800),
        ("{kind: nodes, bandwidth: 50 GB/s, latency: 1 us, "
         "node: {size: 8, bandwidth: 600 GB/s, latency: 1 us}}", 600),
        ("{kind: graph, bandwidth: 50 GB/s, latency: 1 us, "
         "edges: [{ends: [sip0, sip1], bandwidth: 700 GB/s}]}", 700),
    ],
)  # fmt: skip
def test_reductions_keep_up_with_the_fastest_link(
    minimal: Callable[..., str], network: str, link: int
) -> None:
    count = 2 if "graph" in network else 8
    file = minimal({NETWORK: f"network: {network}", "count: 8": f"count: {count}"})
    assert loaded(file).machine.system.sip.pe.math == FlopRate(link * 10**9 // 2)


def test_a_given_value_is_kept(minimal: Callable[..., str]) -> None:
    pe = "system.sip.pe"
    sip = loaded(minimal(), f"{pe}.dma=1 TB/s", f"{pe}.tcm.capacity=1 MiB").machine.system.sip
    assert sip.pe.dma == Bandwidth(10**12)
    assert sip.pe.tcm.capacity == 1 << 20
    assert sip.pe.tcm.bandwidth == sip.cube.hbm.bandwidth


@pytest.mark.parametrize(
    ("given", "follow"),
    [
        ({"fp32": 3.0}, {"bf16": 48, "fp8": 96, "fp64": 1.5}),
        ({"fp16": 2.0, "fp32": 1.0}, {"bf16": 2, "fp8": 4, "fp64": 0.0625}),
        ({"int8": 6.0, "fp64": 9.0}, {"bf16": 3, "fp32": 0.1875, "tf32": 1.5}),
    ],
)
def test_rates_follow_from_the_first_that_is_given(
    minimal: Callable[..., str], given: dict[str, float], follow: dict[str, float]
) -> None:
    rates = ", ".join(f"{name}: {rate} TFLOP/s" for name, rate in given.items())
    rate = loaded(minimal({"bf16: 7.49 TFLOP/s": rates})).machine.system.sip.pe.gemm.rate
    for name, tera in (given | follow).items():
        assert rate[name] == FlopRate(int(tera * 10**12)), name
    # Of fp32, `tl.dot` takes the rate of fp32 where it is given.
    others = {"bf16", "fp16", "fp8", "int8", "fp32", "fp64", "int32"}
    assert rate.keys() == others | ({"tf32"} if "tf32" in follow else set())


def test_a_rate_of_a_type_that_is_not_there(minimal: Callable[..., str]) -> None:
    file = minimal({"bf16: 7": "bf17: 7"})
    with pytest.raises(ConfigError) as caught:
        load_topology(file)
    text = str(caught.value)
    assert "mine.yaml:13:30: system.sip.pe.gemm.rate.bf17: expected one of bf16, fp16, " in text
    assert "did you mean `bf16`?" in text


def test_sips_that_differ_follow_their_own_values(minimal: Callable[..., str]) -> None:
    """SIP 2 is changed twice; SIP 3 gives itself a value that would follow."""
    changed = (
        "system.sips.changed=["
        "{which: [1, 2, 3], sip: {cube: {hbm: {bandwidth: 1 TB/s}}}},"
        "{which: [2], sip: {pe: {gemm: {rate: {bf16: 32 TFLOP/s}}}}},"
        "{which: [3], sip: {pe: {dma: 2 TB/s, gemm: {rate: {fp16: 3 TFLOP/s}}}}}]"
    )
    system = loaded(minimal(), changed).machine.system
    plain, first, second, third = (system.sip_of(sip) for sip in range(4))
    assert system.sip_of(7) is plain is system.sip
    assert first.pe.dma == second.pe.dma == second.pe.tcm.bandwidth == Bandwidth(10**12)
    assert first.pe.math == plain.pe.math
    assert second.pe.math == FlopRate(10**12)
    assert second.pe.gemm.rate["fp8"] == FlopRate(64 * 10**12)
    assert third.pe.dma == Bandwidth(2 * 10**12)
    assert third.cube.sram.bandwidth == Bandwidth(2 * 10**12)
    assert third.pe.gemm.rate == {**plain.pe.gemm.rate, "fp16": FlopRate(3 * 10**12)}


def _seconds(work: Callable[[], Any]) -> float:
    """Returns the simulated time of what a rank issues, without that of issuing it."""
    busy = torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.matmul(busy, busy)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


RING = "network: {kind: ring, bandwidth: 100 GB/s, latency: 500 ns}"
TORUS = "network: {kind: torus, shape: [4, 4], bandwidth: 100 GB/s, latency: 500 ns}"
FAST = "network: {kind: switch, bandwidth: 900 GB/s, latency: 500 ns}"


@pytest.mark.parametrize(
    ("network", "ranks", "per_rank"),
    [(NETWORK, 8, LINK), (FAST, 8, 900e9), (RING, 8, 2 * 100e9), (TORUS, 16, 4 * 100e9)],
    ids=["switch", "fast switch", "ring", "torus"],
)
def test_an_all_reduce_reaches_the_link(
    minimal: Callable[..., str], network: str, ranks: int, per_rank: float
) -> None:
    """What must leave a rank, by all of its links, is nearly twice the buffer."""
    nbytes = 256 << 20
    times = []

    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        x = torch.empty(nbytes // 2, dtype=torch.bfloat16, device="cuda")
        torch.distributed.barrier()
        times.append(_seconds(lambda: torch.distributed.all_reduce(x)))

    Kernbench().spawn(
        worker,
        nprocs=ranks,
        topology=minimal({NETWORK: network, "count: 8": f"count: {ranks}"}),
        data=False,
        overrides=[AUTO],
    )
    assert 0.85 < 2 * nbytes * (1 - 1 / ranks) / max(times) / per_rank <= 1


def test_products_and_copies_reach_what_the_machine_has(minimal: Callable[..., str]) -> None:
    seen = {}

    def worker(rank: int) -> None:
        n = 8192
        for dtype, part in (torch.bfloat16, 1), (torch.float16, 1), (torch.float32, 1 / 16):
            a = torch.empty(n, n, dtype=dtype, device="cuda")
            seen[f"matmul {dtype}"] = (
                2 * n**3 / _seconds(partial(torch.matmul, a, a)) / (PEAK * part)
            )
        for dtype in torch.bfloat16, torch.float32, torch.uint8:
            x = torch.empty(1 << 28, dtype=dtype, device="cuda")
            y = torch.empty_like(x)
            nbytes = x.numel() * x.element_size()
            seen[f"copy {dtype}"] = 2 * nbytes / _seconds(partial(y.copy_, x)) / HBM
            seen[f"add {dtype}"] = 3 * nbytes / _seconds(partial(torch.add, x, x, out=y)) / HBM

    Kernbench().spawn(worker, nprocs=1, topology=minimal(), data=False)
    for what, share in seen.items():
        assert (0.7 if what.startswith("matmul") else 0.8) < share <= 1, what
    assert len(seen) == 9
