"""Small programs, each of which makes the mistake of one code; docs/errors.md shows their reports.

A report tells lines from the `def` of its program on, which is line 1 of a file named by the code.
"""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import greenlet
import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.ccl.config import choose, load_ccl
from kernbench.cli.hash_seeds import try_seeds
from kernbench.cli.output import SILENT
from kernbench.config import Formerly, Range, load
from kernbench.errors import call_site
from kernbench.memory import Allocator, Space
from kernbench.report import check_writable
from kernbench.run_spec import RunSpec
from kernbench.testing import Kernbench
from kernbench.topology import load_topology, shipped_machines
from kernbench.tp import parallel_state
from kernbench.tp.config import ModelParallelConfig
from kernbench.tp.layers import ColumnParallelLinear
from kernbench.ttir.executing import Executable
from kernbench.ttir.memory import Allocation as Bytes
from kernbench.ttir.memory import Memory
from kernbench.ttir.reader import read

Program = Callable[[Kernbench], object]

EXAMPLES: Final[dict[str, Program]] = {}
"""By code, what runs its program; the working directory is an empty folder."""


def on_main(program: Program) -> Program:
    """Makes an example of a program that spawns, if at all, by itself."""
    EXAMPLES[program.__name__.upper()] = program
    return program


def on_ranks(nprocs: int, **dials: Any) -> Callable[[Callable[[int], None]], Callable[[int], None]]:
    """Returns a decorator that makes an example of a worker.

    Args:
        dials: As in `Kernbench.context`.
    """

    def added(worker: Callable[[int], None]) -> Callable[[int], None]:
        EXAMPLES[worker.__name__.upper()] = lambda kernbench: kernbench.spawn(
            worker, nprocs=nprocs, **dials
        )
        return worker

    return added


# Collectives


@on_ranks(4)
def c1(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)
    if rank == 2:
        return
    dist.all_reduce(x)


@on_ranks(2)
def c2(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    if rank == 0:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, src=0)


@on_ranks(4)
def c3(rank: int) -> None:
    dist.init_process_group("nccl")
    shape = (8, 4) if rank == 3 else (4, 8)
    x = torch.ones(*shape, device="cuda")
    dist.all_reduce(x)


@on_ranks(4)
def c4(rank: int) -> None:
    dist.init_process_group("nccl")
    dtype = torch.float16 if rank == 3 else torch.bfloat16
    x = torch.ones(8, dtype=dtype, device="cuda")
    dist.all_reduce(x)


@on_ranks(4)
def c5(rank: int) -> None:
    dist.init_process_group("nccl")
    op = dist.ReduceOp.MAX if rank == 3 else dist.ReduceOp.SUM
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x, op)


@on_ranks(2)
def c6(rank: int) -> None:
    dist.init_process_group("nccl")
    flags = torch.ones(4, dtype=torch.int32, device="cuda")
    dist.all_reduce(flags, dist.ReduceOp.BOR)


@on_ranks(4)
def c7(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.broadcast(x, src=rank // 2)


@on_ranks(3)
def c8(rank: int) -> None:
    dist.init_process_group("nccl")
    pair = dist.new_group([1, 2])
    dist.get_backend(pair)


@on_ranks(4)
def c9(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank < 2:
        dist.new_group([0, 1])
    else:
        dist.new_group([2, 3])


@on_ranks(2)
def c10(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (first, second) if rank else (second, first):
        dist.all_reduce(x, group=group)


@on_ranks(2)
def c11(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    out = torch.empty(4, device="cuda")
    sizes = [3, 1] if rank == 0 else [2, 2]
    dist.all_to_all_single(out, x, [2, 2], sizes)


@on_ranks(4)
def c12(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    out = torch.empty(8, device="cuda")
    dist.all_gather_into_tensor(out, x)


@on_ranks(2)
def c13(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x, async_op=True)


@on_ranks(2)
def c14(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    x.zero_()
    work.wait()


@on_ranks(2)
def c15(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    print(x.sum())
    work.wait()


@on_ranks(4)
def c17(rank: int) -> None:
    dist.init_process_group("nccl")
    pair = [0, 1] if rank < 2 else [2, 3]
    for _ in range(10):
        dist.new_group(pair, use_local_synchronization=True)


@on_ranks(2)
def c18(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.destroy_process_group()
    dist.all_reduce(x)


@on_main
def c19(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            torch.multiprocessing.spawn(worker, nprocs=1)

    with kernbench.context():
        torch.multiprocessing.spawn(worker, nprocs=2)


@on_ranks(1)
def c20(rank: int) -> None:
    @tl.jit
    def scale(x: tl.Pointer) -> None:
        factor = torch.ones(1).item()
        tl.store(x, factor)

    x = torch.ones(4, device="cuda")
    scale[(1,)](x)
    x.tolist()


@on_ranks(2)
def c21(rank: int) -> None:
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    config = ModelParallelConfig(sequence_parallel=True)
    norm = torch.nn.RMSNorm(4, device="cuda")
    layer = ColumnParallelLinear(4, 8, config=config, init_method=torch.nn.init.ones_)
    model = torch.nn.Sequential(norm, layer)
    x = torch.ones(1, 1, 4, device="cuda") * (rank + torch.arange(4, device="cuda"))
    model(x)[0].sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    parallel_state.destroy_model_parallel()


# Messages


@on_ranks(2)
def p1(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    if rank == 1:
        dist.recv(x, src=0)


@on_ranks(2)
def p2(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    if rank == 1:
        dist.send(x, dst=0, tag=5)


@on_ranks(2)
def p3(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    if rank == 0:
        dist.send(x, dst=1, tag=7)
    else:
        dist.recv(x, src=0, tag=8)


@on_ranks(4)
def p4(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.recv(x, src=(rank - 1) % 4)
    dist.send(x, dst=(rank + 1) % 4)


@on_ranks(2, eager_limit=4096)
def p5(rank: int) -> None:
    dist.init_process_group("nccl")
    x, y = torch.ones(4, device="cuda"), torch.empty(4, device="cuda")
    dist.send(x, dst=1 - rank)
    dist.recv(y, src=1 - rank)


@on_ranks(2)
def p6(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.send(x, dst=rank)


@on_ranks(2)
def p7(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 0:
        dist.send(torch.ones(6, device="cuda"), dst=1)
    else:
        dist.recv(torch.empty(4, device="cuda"), src=0)


@on_main
def p8(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((1,), float(rank), device="cuda")
        if rank:
            dist.send(x, dst=0)
        else:
            mean = torch.zeros(1, device="cuda")
            for _ in range(2):
                dist.recv(x)
                mean = (mean + x) / 2
            print(mean.item())

    kernbench.explore(worker, nprocs=3)


@on_ranks(2)
def p9(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.send(x, dst=rank + 1)


# Memory


@on_ranks(1)
def m1(rank: int) -> None:
    @tl.jit
    def double(x: tl.Pointer, y: tl.Pointer, block: tl.constexpr) -> None:
        lanes = tl.arange(0, block)
        tl.store(y + lanes, 2 * tl.load(x + lanes))

    x, y = torch.ones(100, device="cuda"), torch.empty(128, device="cuda")
    double[(1,)](x, y, block=128)
    y.tolist()


@on_ranks(1)
def m2(rank: int) -> None:
    @tl.jit
    def fill(x: tl.Pointer, block: tl.constexpr) -> None:
        tl.store(x + tl.arange(0, block), 1.0)

    x = torch.empty(100, device="cuda")
    fill[(1,)](x, block=128)
    x.tolist()


@on_main
def m4(kernbench: Kernbench) -> None:
    hbm = Allocator(Space.HBM, sip=0, unit=0, capacity=4096)
    block = hbm.allocate(512, "x", call_site())
    hbm.free(block, call_site())
    hbm.free(block, call_site())


@on_ranks(1)
def m5(rank: int) -> None:
    x = torch.empty(8, device="cuda")
    x[:3] = 1
    print(x.sum().item())


@on_ranks(1, data=False)
def m7(rank: int) -> None:
    weights = torch.empty(9 << 30, dtype=torch.bfloat16, device="cuda")
    torch.empty_like(weights)


@on_ranks(1)
def m8(rank: int) -> None:
    @tl.jit
    def fill(x: tl.Pointer, block: tl.constexpr) -> None:
        tl.store(x + tl.arange(0, block), tl.zeros((block,)))

    x = torch.empty(1 << 20, device="cuda")
    fill[(1,)](x, block=1 << 20)
    x.tolist()


@on_ranks(1)
def m10(rank: int) -> None:
    x = torch.ones(8, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    print((y + 1).sum())


@on_ranks(1)
def m12(rank: int) -> None:
    @tl.jit
    def count(x: tl.Pointer) -> None:
        tl.store(x, tl.load(x) + 1)

    x = torch.zeros(1, device="cuda")
    count[(4,)](x)
    x.tolist()


@on_ranks(2)
def m14(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    y = x.to("cuda:0")
    print(y)


# Kernels


@on_ranks(1)
def k1(rank: int) -> None:
    @tl.jit
    def fill(x: tl.Pointer, block: tl.constexpr) -> None:
        tl.store(x + tl.program_id(0) * block + tl.arange(0, block), 1.0)

    x = torch.empty(64, device="cuda")
    fill[(64 // 128,)](x, block=128)


@on_ranks(1)
def k2(rank: int) -> None:
    @tl.jit
    def product(x: tl.Pointer) -> None:
        tile = tl.reshape(tl.load(x + tl.arange(0, 16)), (8, 2))
        tl.dot(tile, tile)

    x = torch.ones(16, device="cuda")
    product[(1,)](x)
    x.tolist()


@on_ranks(1)
def k3(rank: int) -> None:
    @tl.jit
    def fill(x: tl.Pointer, value: float, block: tl.constexpr) -> None:
        tl.store(x + tl.arange(0, block), value)

    x = torch.empty(64, device="cuda")
    fill[(1,)](x, block=64)


@on_ranks(2, step_budget=1000)
def k5(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    while rank == 1:
        x.mul_(0.5)


@on_ranks(2)
def k6(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.empty(4, device="cuda")
    work = dist.irecv(x, src=1 - rank)
    while not work.is_completed():
        pass


@on_ranks(1)
def k7(rank: int) -> None:
    @tl.jit
    def rotate(x: tl.Pointer, rounds: int) -> None:
        i, n = tl.program_id(0), tl.num_programs(0)
        for _ in range(rounds):
            tl.send(tl.load(x + tl.arange(0, 8)), (i + 1) % n)
        for _ in range(rounds):
            tl.recv((i + n - 1) % n)

    x = torch.ones(8, device="cuda")
    rotate[(3,)](x, 5)
    x.tolist()


@on_ranks(1)
def k9(rank: int) -> None:
    @tl.jit
    def hand_over(x: tl.Pointer, block: tl.constexpr) -> None:
        if tl.program_id(0) == 0:
            tl.send(tl.load(x + tl.arange(0, block)), 1)
        else:
            tl.recv(0)

    x = torch.ones(2048, device="cuda")
    hand_over[(2,)](x, block=2048)
    x.tolist()


@on_ranks(2, max_time_ps=10**9)
def k10(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    while x[0].item() < 10:
        dist.all_reduce(x, op=dist.ReduceOp.AVG)


@on_ranks(1)
def k12(rank: int) -> None:
    @tl.jit
    def total(x: tl.Pointer, out: tl.Pointer, n: int, block: tl.constexpr) -> None:
        found = tl.full((), 0, tl.int32)
        for start in range(0, n, block):
            found += tl.sum(tl.load(x + start + tl.arange(0, block)))
        tl.store(out, found)

    x, out = torch.ones(64, device="cuda"), torch.empty(1, device="cuda")
    total[(1,)](x, out, 64, block=16)


def compiled(name: str, source: str, operations: str, *arguments: np.ndarray[Any, Any]) -> None:
    """Runs a kernel as Triton's compiler leaves it, on arrays of which the last is the output.

    Args:
        name: Name of the kernel, and of its file.
        source: The kernel in Python, to which the text of the IR tells lines.
        operations: Operations on `%a`, `%b` and so on, which point to whole numbers.
    """
    Path(f"{name}.py").write_text(source)
    names = "abc"[: len(arguments)]
    given = ", ".join(f"%{name}: !tt.ptr<i32>" for name in names)
    text = f"module {{ tt.func public @{name}({given}) {{\n{operations}\ntt.return\n}} }}"
    starts = [(1 + place) << 20 for place in range(len(arguments))]
    memory = Memory(
        {
            place: Bytes(f"argument {name}", start, array.view(np.uint8))
            for place, (name, start, array) in enumerate(zip(names, starts, arguments, strict=True))
        }
    )
    pointers = [np.array([start]) for start in starts]
    Executable(read(text)).run((1, 1, 1), pointers, memory, print)


@on_main
def k13(kernbench: Kernbench) -> None:
    source = """
@triton.jit
def mean(total, count, out):
    tl.store(out, tl.load(total) // tl.load(count))
"""
    operations = """
%x = tt.load %a : !tt.ptr<i32> loc("mean.py":4:27)
%y = tt.load %b : !tt.ptr<i32> loc("mean.py":4:45)
%z = arith.divsi %x, %y : i32 loc("mean.py":4:37)
tt.store %c, %z : !tt.ptr<i32> loc("mean.py":4:5)"""
    compiled("mean", source, operations, *np.array([[5], [0], [0]], np.int32))


@on_main
def k14(kernbench: Kernbench) -> None:
    source = """
@triton.jit
def largest(x, out, n: tl.constexpr):
    lanes = tl.arange(0, 8)
    values = tl.load(x + lanes, mask=lanes < n)
    tl.store(out, tl.max(values))
"""
    operations = """
%n = arith.constant dense<5> : tensor<8xi32>
%l = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
%m = arith.cmpi slt, %l, %n : tensor<8xi32>
%s = tt.splat %a : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
%p = tt.addptr %s, %l : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
%v = tt.load %p, %m : tensor<8x!tt.ptr<i32>> loc("largest.py":5:14)
%r = "tt.reduce"(%v) <{axis = 0 : i32}> ({
^bb0(%f: i32, %g: i32):
  %h = arith.maxsi %f, %g : i32
  tt.reduce.return %h : i32
}) : (tensor<8xi32>) -> i32
tt.store %b, %r : !tt.ptr<i32> loc("largest.py":6:5)"""
    compiled("largest", source, operations, -np.arange(1, 6, dtype=np.int32), np.zeros(1, np.int32))


@on_main
def k15(kernbench: Kernbench) -> None:
    source = """
@triton.jit
def corner(x, rows, columns):
    tensor = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [4, 4])
    print(tensor.load([0, 0]))
"""
    operations = """
%r = arith.constant 4 : i32
%c = arith.constant 6 : i32
%s = arith.constant 6 : i64
%o = arith.constant 1 : i64
%d = tt.make_tensor_descriptor %a, [%r, %c], [%s, %o] : <i32>, <4x4xi32> loc("corner.py":4:14)"""
    compiled("corner", source, operations, np.zeros(24, np.int32))


# Ranks


@on_ranks(2)
def r4(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(1, device="cuda")
    if rank == 0:
        raise ValueError("no input file")
    while True:
        try:
            dist.all_reduce(x)
            x.item()
        except BaseException:
            continue


@on_ranks(2)
def r6(rank: int) -> None:
    if rank == 0:
        raise greenlet.GreenletExit


@on_main
def r11(_: Kernbench) -> None:
    Path("r11.py").write_text(SET, encoding="utf-8")
    spec = RunSpec(bench="r11.py")
    try_seeds(spec, SILENT, 2, spec.command())


SET = """\
import kernbench.torch as torch
import kernbench.torch.distributed as dist

SIZES = {"weight": 8, "bias": 4}


def worker(rank):
    dist.init_process_group("nccl")
    for name in {"weight", "bias"}:
        gradient = torch.ones(SIZES[name], device="cuda")
        dist.all_reduce(gradient)


def run(ctx):
    ctx.multiprocessing.spawn(worker, nprocs=2)
"""


@on_ranks(1)
def r12(rank: int) -> None:
    with ThreadPoolExecutor() as pool:
        pool.submit(lambda: torch.ones(3)).result()


# Files


def machine(old: str, new: str) -> object:
    """Loads the shipped machine `sip8` with one change, from `machine.yaml`."""
    text = shipped_machines()["sip8"].read_text(encoding="utf-8")
    assert text.count(old) == 1
    Path("machine.yaml").write_text(text.replace(old, new), encoding="utf-8")
    return load_topology("machine.yaml")


@on_main
def f1(_: Kernbench) -> None:
    machine("dispatch: 2 us", "dispatch: 2 us\n    dispach: 3 us")


@on_main
def f2(_: Kernbench) -> None:
    machine("count: 8", 'count: "8"')


@on_main
def f3(_: Kernbench) -> None:
    machine("issue: 2 ns", "issue: -2 ns")


@on_main
def f4(_: Kernbench) -> None:
    machine("pes: 8", "pes: 1000000000000")


@on_main
def f5(_: Kernbench) -> None:
    machine("kind: ring", "kind: fat_tree\n      leaf: {size: 2}")


@on_main
def f6(_: Kernbench) -> None:
    machine("dma: 200 GB/s", "dma: 200 GB/s\n      issue: 3 ns")


@on_main
def f7(_: Kernbench) -> None:
    Path("ccl.yaml").write_text(
        "defaults: {algorithm: rings}\n"
        "algorithms:\n"
        "  ring:\n"
        "    module: kernbench.ccl.algorithms.ring\n",
        encoding="utf-8",
    )
    load_ccl(Path("ccl.yaml"))


@on_main
def f8(_: Kernbench) -> None:
    machine(
        "pcie: {bandwidth: 50 GB/s, latency: 2 us}",
        "pcie: &link\n      bandwidth: 50 GB/s\n      latency: *link",
    )


@on_main
def f9(_: Kernbench) -> None:
    machine("shape: [2, 2]", "shape: " + "[" * 65 + "]" * 65)


@on_main
def f10(_: Kernbench) -> None:
    machine("    dispatch: 2 us", "\tdispatch: 2 us")


@on_main
def f11(_: Kernbench) -> None:
    Path("machine.yaml").touch()
    load_topology("machines.yaml")


@on_main
def f12(_: Kernbench) -> None:
    machine("kind: ring", "kind: torus\n      shape: [2, 3]")


@on_main
def f13(_: Kernbench) -> None:
    machine("launch_queue: 1024", "launch_queue: !!python/name:os.system")


@on_main
def f14(_: Kernbench) -> None:
    path = Path("ccl.yaml")
    path.write_text(
        "defaults: {algorithm: mine}\nalgorithms:\n  mine:\n    module: my_rings\n",
        encoding="utf-8",
    )
    choose(load_ccl(path), path).algorithm("all_reduce")


@on_main
def f15(_: Kernbench) -> None:
    check_writable("results/trace.json")


@on_main
def f16(_: Kernbench) -> None:
    @dataclass(frozen=True)
    class Queues:
        n_slots: Annotated[int, Formerly("slots"), Range(1, 64)]

    Path("queues.yaml").write_text("slots: 4\n", encoding="utf-8")
    warnings.simplefilter("always")
    load(Queues, "queues.yaml")
