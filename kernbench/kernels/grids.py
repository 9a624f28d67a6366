"""Kernels whose programs work on tiles, such as Triton's: what a launch of them takes.

One function, `grid_time`, from a plain record of a launch to its time with its parts. It knows no
compiler: whoever launches a kernel says what its programs do, as far as that is known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heapreplace
from math import ceil
from typing import Final

from kernbench.hw.explained import Parts, Resource, Spent
from kernbench.hw.library import Library
from kernbench.hw.programs import GridPrice, Occupancy
from kernbench.kernels.contention import Contention, contention_ps
from kernbench.topology.spec import ProgramsSpec, SipSpec
from kernbench.units import PS_PER_S

LAW: Final = "pe.programs"
ATOMICS: Final = f"{LAW}.atomic"
"""Keys of the laws in the machine's file."""

LANES: Final = 32
"""Threads of a warp, each of which is an operation of the engine `math`."""

_TOGETHER: Final = 4
"""Warps that give one product to the matrix engine."""

_LEAST_REGISTERS: Final = 16
_AT_ONCE: Final = 8
"""Registers of a thread are given out in multiples of it."""

_ORDERED: Final = 1 << 15
"""Up to so many programs that differ are given to the PEs one by one."""


@dataclass(frozen=True, slots=True)
class GridLaunch:
    """A launch of programs, which are equal but for the turns of their loops.

    Attributes:
        warps: Warps of each program.
        stages: In how many turns of a loop the loads are under way that a turn waits for: 1 if each
            turn waits for its own.
        turns: How many programs, and how many turns of innermost loops each of them takes; runs of
            equal ones, in the order of the grid.
        instructions: What each warp issues outside of innermost loops.
        turn_instructions: What it issues in a turn.
        hbm_bytes: Different bytes that the launch reads and writes.
        traffic: Bytes that it reads and writes, as often as it does.
        flop: Operations of the matrix engines, by the type of operands as a machine's file has it,
            such as `bf16`.
        registers: Of a thread.
        shared: Bytes of shared memory of a program.
        estimated: Whether instructions, registers and shared memory are, for want of machine code.
        waits: How often a turn waits for its loads, if it waits for its own.
        beside: Whether the products of a turn go on beside the instructions of the next.
        away: Picoseconds by which loads are longer on their way than from the device's own memory.
        contention: What each of its atomic operations asks of the last cache.
        spilled: Bytes of registers that all threads move to and from memory, for want of registers.
        stack: Bytes of a program's registers that lie in memory.
        together: Whether the warps of a program wait for each other.
    """

    warps: int
    stages: int
    turns: Sequence[tuple[int, int]]
    instructions: int
    turn_instructions: int
    hbm_bytes: int
    traffic: int
    flop: Mapping[str, int] = field(default_factory=dict)
    registers: int = 0
    shared: int = 0
    estimated: bool = False
    waits: Fraction = Fraction(1)
    beside: bool = False
    away: int = 0
    contention: Sequence[Contention] = ()
    spilled: int = 0
    stack: int = 0
    together: bool = True

    @property
    def programs(self) -> int:
        """How many programs there are."""
        return sum(count for count, _ in self.turns)

    @property
    def all_turns(self) -> int:
        """Turns of all programs together."""
        return sum(count * turns for count, turns in self.turns)


def resident(launch: GridLaunch, spec: ProgramsSpec) -> tuple[int, str]:
    """Returns how many programs of a launch a PE has at once, and what allows no more.

    A program that is too large counts as one.
    """
    threads = launch.warps * LANES
    each = max(_LEAST_REGISTERS, -(-launch.registers // _AT_ONCE) * _AT_ONCE)
    limits = {
        "programs": spec.programs,
        "warps": spec.warps // launch.warps,
        "registers": spec.registers // (each * threads),
        "shared memory": spec.shared // max(1, launch.shared + spec.reserved),
    }
    limit = min(limits, key=lambda name: limits[name])
    return max(1, limits[limit]), limit


def grid_time(library: Library, launch: GridLaunch) -> GridPrice:
    """Returns what a launch takes on a SIP.

    A warp issues an instruction a `step`, and its products take as long as the engine does. Without
    a loop, or with one stage, each turn waits for its loads. With `stages`, a load is issued within
    a turn and used that many turns less one later. Programs of a PE share its engines. PEs take
    programs in the order of the grid; in a last wave of equal programs there are fewer at once. Of
    all this and the bytes through the HBM and the SRAM, the longest counts, and more than that
    where programs wait for their own loads (`_in_turns`); the launch itself has the latency of one
    load in it.

    Args:
        library: Of the SIP.
        launch: What is launched; at least one program.
    """
    sip, count = library.sip, launch.programs
    spec = sip.pe.programs
    most, limit = resident(launch, spec)
    times = _Times(sip, launch)
    share = library.kernel("pointwise").share
    cubes = library.num_pes // sip.cube.pes
    traffic = cubes * sip.cube.sram.bandwidth.per_second * spec.traffic
    cache = cubes * sip.cube.sram.capacity
    to_l2, to_hbm = _spilled(launch, library.num_pes, most, spec, cache)
    roofs: dict[Resource, int] = {
        "HBM": -(-(launch.hbm_bytes + to_hbm) * PS_PER_S // library.hbm_bytes_per_s),
        "L2": -(-(launch.traffic + to_l2) * 100 * PS_PER_S // traffic),
        "math": times.issued_roof // library.num_pes,
        "tensor": times.products // library.num_pes,
    }
    moves: dict[Resource, int] = {"HBM": roofs["HBM"] * 100 // int(share), "L2": roofs["L2"]}
    if launch.contention:
        roofs["atomics"] = sum([contention_ps(spec, each) for each in launch.contention])
        moves["atomics"] = roofs["atomics"]
    slowest = max(moves, key=lambda name: moves[name])
    worked, bound = _worked(launch, library.num_pes, most, times, moves[slowest])
    if moves[slowest] > worked or not bound:
        worked, bound = max(worked, moves[slowest]), slowest
    total = sip.launch + worked
    parts: Parts = {("launch", LAW): Spent(sip.launch, sip.launch)} if sip.launch else {}
    if worked:
        law = ATOMICS if bound == "atomics" else LAW
        parts[bound, law] = Spent(worked, roofs.get(bound, 0))
    work: dict[Resource, int] = {
        "HBM": launch.hbm_bytes + to_hbm,
        "L2": launch.traffic + to_l2,
        "math": times.issued * launch.warps * LANES,
        "tensor": sum(launch.flop.values()),
    }
    places, told = library.num_pes * most, launch.estimated
    shared = count, launch.warps, most, spec.warps, places, limit
    return GridPrice.of(parts, Occupancy(*shared, total, work, roofs, told, launch.spilled))


def _spilled(
    launch: GridLaunch, pes: int, most: int, spec: ProgramsSpec, cache: int
) -> tuple[int, int]:
    """Returns bytes of spilled registers that go through the last cache, and through the HBM.

    Those of the programs that a PE has at once lie beside its shared memory, if there is room.
    What the last cache cannot keep of those of all PEs goes to the HBM and comes back.

    Args:
        pes: How many PEs there are.
        most: How many programs a PE has at once.
        cache: Bytes of the last cache.
    """
    at_once = min(most, -(-launch.programs // pes))
    if launch.stack * at_once <= spec.shared - launch.shared * at_once:
        return 0, 0
    kept = min(Fraction(1), Fraction(cache, launch.stack * at_once * min(pes, launch.programs)))
    return launch.spilled, int(launch.spilled * (1 - kept))


class _Times:
    """Times of one program of a launch.

    Attributes:
        issued: Instructions of one warp of each program.
        issued_roof: Picoseconds in which all warps issue all of them on one PE at full rate.
        products: Picoseconds of all products of the launch on one PE.
        latency: Picoseconds that a load takes.
    """

    def __init__(self, sip: SipSpec, launch: GridLaunch) -> None:
        self._launch: Final = launch
        self._spec: Final = sip.pe.programs
        rates = sip.pe.gemm.rate
        self.products: Final = sum(rates[name].duration_ps(n) for name, n in launch.flop.items())
        self._all: Final = launch.all_turns or launch.programs
        self._per_s: Final = sip.pe.math.per_second
        self.latency: Final = self._spec.latency
        in_turns = launch.all_turns * launch.turn_instructions
        self.issued: Final = launch.programs * launch.instructions + in_turns
        self.issued_roof: Final = self._issued(self.issued)

    def _issued(self, instructions: int) -> int:
        return -(-instructions * self._launch.warps * LANES * PS_PER_S // self._per_s)

    def program(self, at_once: int, turns: int) -> tuple[int, int, Resource]:
        """Returns the picoseconds of programs that a PE has at once, and what takes them.

        The number between is how long its engines are busy.

        Args:
            at_once: How many there are.
            turns: Turns of the loops of each.
        """
        launch, spec = self._launch, self._spec
        in_turns = turns * launch.turn_instructions
        instructions = launch.instructions + in_turns
        products = self.products * (turns if launch.all_turns else 1) // self._all
        own = products * min(_TOGETHER, launch.warps) // launch.warps
        if launch.beside:
            alone = launch.instructions * spec.step + max(in_turns * spec.step, products)
        else:
            alone = instructions * spec.step + own
        latency = spec.latency + launch.away
        # Before a loop, addresses and the like are loaded, which are near.
        alone += spec.latency if turns else latency
        if launch.stages <= 1:
            alone += ceil(turns * launch.waits) * latency
        else:
            fed = (turns * latency + in_turns * spec.step) // (launch.stages - 1)
            alone = max(alone, launch.instructions * spec.step + spec.latency + fed)
        # Turns that wait for nothing leave no gaps: FMA alone has 97 % of the full rate (ADR 0081).
        full = in_turns if launch.stages <= 1 and not (launch.waits or launch.flop) else 0
        issued = self._issued(full) + self._issued(instructions - full) * 100 // spec.issue
        ways: dict[Resource, int] = {
            "latency": alone,
            "math": at_once * issued,
            "tensor": at_once * products,
        }
        longest = max(ways, key=lambda name: ways[name])
        return ways[longest], max(ways["math"], ways["tensor"]), longest


def _worked(
    launch: GridLaunch, pes: int, most: int, times: _Times, moved: int
) -> tuple[int, Resource | None]:
    """Returns what a launch's programs take beyond the launch, and what takes most of it.

    None of the engines does if programs wait longer for memory than engines are busy.

    Args:
        pes: How many PEs there are.
        most: How many programs a PE has at once.
        times: Of its programs.
        moved: Picoseconds in which memory moves all bytes of the launch.
    """
    count, latency = launch.programs, int(times.latency)
    at_once = min(most, -(-count // pes))
    if len({turns for _, turns in launch.turns}) > 1:
        took = _ordered(launch, pes * at_once, lambda turns: times.program(at_once, turns)[0])
        most_turns = max(turns for _, turns in launch.turns)
        return max(0, took - latency), times.program(at_once, most_turns)[2]
    turns = launch.turns[0][1]
    waves, left = divmod(count, pes * most)
    runs = [(waves, most, count - left), (1, -(-left // pes), left)]
    worked = busy = 0
    for often, together, programs in runs:
        if often and programs:
            took, engines, _ = times.program(together, turns)
            took, engines = often * took - latency, max(0, often * engines - latency)
            latency = 0
            if launch.stages <= 1:
                units = together * (1 if launch.together else launch.warps)
                took = max(took, _in_turns(moved * programs // count, engines, units))
            worked, busy = worked + took, busy + engines
    bound = times.program(at_once, turns)[2]
    waited = launch.stages <= 1 and moved > busy and bound != "latency"
    return max(0, worked), None if waited else bound


def _in_turns(memory: int, engines: int, programs: int) -> int:
    """Returns how long memory and engines take that programs of a PE use in turns.

    While one waits for its loads, others compute; with few of them it happens that all wait, or
    all compute. Warps that never wait for each other do so each for itself. That is a closed
    network of two stations [Buzen, Computational algorithms for closed queueing networks with
    exponential servers, CACM 16(9), 1973]: of the sums of all ways to share `programs` and one less
    among both, the quotient. It is the sum of both if there is one program, and the longer one if
    there are many.

    Args:
        memory: Picoseconds in which memory moves the bytes of all programs.
        engines: Picoseconds in which the engines of a PE do the work of all of its programs.
        programs: How many a PE has at once, or their warps.
    """
    if memory == engines:
        return memory * (programs + 1) // programs
    above: int = memory ** (programs + 1) - engines ** (programs + 1)
    below: int = memory**programs - engines**programs
    return above // below


def _ordered(launch: GridLaunch, places: int, program: Callable[[int], int]) -> int:
    """Returns when the last program ends; each begins where one has ended first."""
    durations = {turns: program(turns) for _, turns in launch.turns}
    if launch.programs > _ORDERED:  # Graham: no order takes longer
        total = sum(count * durations[turns] for count, turns in launch.turns)
        return -(-(total + (places - 1) * max(durations.values())) // places)
    free = [0] * places
    for count, turns in launch.turns:
        for _ in range(count):
            heapreplace(free, free[0] + durations[turns])
    return max(free)
