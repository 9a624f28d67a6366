"""What was found out about an operation once is used again only where it is still true."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
_TIMES = 3
"""An operation is met, then known, then taken the short way."""


def _run(worker: Callable[[], Any], *, data: bool) -> tuple[Any, list[str]]:
    """Returns what a rank gives, and the names of its commands."""
    from kernbench.bridge import bridged
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.topology import load_topology

    engine = GraphEngine(
        load_topology("h200x8").topology_obj, enable_data=False, moves_at_call=True, record="full"
    )
    given: list[Any] = []
    with RuntimeContext(engine=engine, quiet=True), bridged(data=data):
        torch.multiprocessing.spawn(lambda rank: given.append(worker()), nprocs=1)
        return given[0], [one.name for one in engine.op_log.records]


@pytest.mark.parametrize("data", [True, False])
def test_results_of_integers_follow_the_default_type(data: bool) -> None:
    kinds = (torch.float32, torch.float64, torch.bfloat16)

    def worker() -> Any:
        whole, made = torch.arange(4).cuda(), []
        for kind in kinds:
            torch.set_default_dtype(kind)
            for _ in range(_TIMES):
                made += [(whole / 2).dtype, (whole + 0.5).dtype, whole.sqrt().dtype]
        return made

    made, _ = _run(worker, data=data)
    assert made == [kind for kind in kinds for _ in range(3 * _TIMES)]


def test_histograms_of_integers_can_be_taken_again() -> None:
    def worker() -> Any:
        given = torch.tensor([0, 1, 1, 3]).cuda()
        return [torch.histc(given, 4, min=0, max=3).tolist() for _ in range(_TIMES)]

    assert _run(worker, data=True)[0] == [[1, 2, 0, 1]] * _TIMES


@pytest.mark.parametrize("data", [True, False])
def test_what_a_gpu_has_no_kernel_for_is_refused(data: bool) -> None:
    def worker() -> None:
        values, several = torch.ones(4), torch.ones(4, 2)
        torch.histogram(values, 2)
        for _ in range(_TIMES):
            with pytest.raises(NotImplementedError, match=r"Could not run 'aten::histogram.bin_ct"):
                torch.histogram(values.cuda(), 2)
            with pytest.raises(NotImplementedError, match=r"move its operands with .cpu\(\)"):
                torch.histogramdd(several.cuda(), [2, 2])

    _run(worker, data=data)


def test_operations_without_a_kernel_for_gpus_are_those_of_pytorchs_own_list() -> None:
    from kernbench.bridge.operations.known import HOST_ONLY

    torchgen = pytest.importorskip("torchgen")
    table = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    listed = yaml.load(table.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    functions = {one["func"].split("(")[0]: one for one in listed}
    # Variants, and what nobody calls but PyTorch itself.
    inner = "test|quant|mkldnn|for_cpu|4bit|out$|input$|token|foobar|async|add_relu|slow"
    lacking = set()
    for name, one in functions.items():
        places = functions[one.get("structured_delegate", name)].get("dispatch", {})
        backends = {key.strip() for keys in places for key in keys.split(",")}
        ours = "CPU" in backends and not re.search("CUDA|Composite", str(backends))
        if ours and not re.search(inner, name):
            lacking.add(f"aten::{name.split('.')[0]}")
    assert lacking - {"aten::from_file"} == HOST_ONLY


@pytest.mark.parametrize("data", [True, False])
def test_a_value_of_the_host_crosses_the_bus_each_time(data: bool) -> None:
    def worker() -> None:
        loss = torch.zeros((), device="cuda")
        for _ in range(_TIMES):
            loss.copy_(torch.tensor(1.0))
            torch._foreach_copy_([loss], [torch.tensor(1.0)])

    assert _run(worker, data=data)[1] == ["aten::zeros", *["Memcpy HtoD"] * (2 * _TIMES)]


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize(
    "give_back",
    [
        lambda one: one.type_as(one),
        lambda one: one.sum_to_size(4, 4),
        torch.atleast_1d,
        lambda one: torch.dropout(one, 0.0, False),
    ],
)
def test_operations_that_give_back_their_operand_make_no_memory(
    give_back: Callable[[Any], Any], data: bool
) -> None:
    def worker() -> Any:
        from kernbench.bridge.base.here import this_rank

        with torch.inference_mode():
            given = torch.rand(4, 4).cuda()
            before = this_rank().hbm.allocated
            kept = [give_back(given) for _ in range(_TIMES)]
            return [one is given for one in kept], this_rank().hbm.allocated - before

    assert _run(worker, data=data)[0] == ([True] * _TIMES, 0)


@pytest.mark.parametrize("data", [True, False])
def test_a_single_value_of_the_host_fills_where_a_mask_is_true(data: bool) -> None:
    def worker() -> Any:
        given, mask = torch.zeros(2, 2).cuda(), torch.eye(2).bool().cuda()
        for _ in range(_TIMES):
            given = given.masked_fill(mask, torch.tensor(1.0)).masked_fill_(mask, torch.tensor(2.0))
        return (given.device, given.dtype, given.tolist() if data else 0)

    numbers = [[2.0, 0.0], [0.0, 2.0]] if data else 0
    made, names = _run(worker, data=data)
    assert made == (torch.device("cuda:0"), torch.float32, numbers)
    assert names.count("aten::masked_fill") == names.count("aten::masked_fill_") == _TIMES


@pytest.mark.parametrize("data", [True, False])
def test_tensors_inside_of_transforms_say_where_they_are(data: bool) -> None:
    def there(one: Any) -> Any:
        assert one.is_cuda
        return (one * torch.ones(4, device=one.device)).sum()

    def worker() -> Any:
        given = torch.rand(3, 4).cuda()
        made = (
            torch.vmap(there)(given),
            torch.func.grad(there)(given[0]),
            torch.vmap(torch.func.grad(there))(given),
            torch.func.jvp(there, (given[0],), (given[1],))[1],
        )
        return [one.device for one in made]

    assert _run(worker, data=data)[0] == [torch.device("cuda:0")] * 4


@pytest.mark.parametrize("data", [True, False])
def test_inference_mode_runs_the_kernels_that_run_without_gradients(data: bool) -> None:
    """PyTorch gives operations that are made of others as they are there."""
    functional = torch.nn.functional

    def worker(mode: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            torch.manual_seed(0)
            x, taps = torch.rand(2, 8, 16).cuda(), torch.rand(8, 8, 3).cuda()
            square, ones = torch.rand(16, 16).cuda(), torch.ones(16).cuda()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with mode():
                begin.record()
                for _ in range(_TIMES):
                    y = functional.linear(functional.layer_norm(x, (16,), ones, ones), square)
                    y = torch.einsum("bij,bkj->bik", torch.matmul(y, square), y)
                    y = functional.softmax(functional.conv1d(y, taps), -1)
                    one, two = y.reshape(2, -1).half().float().contiguous().chunk(2)
                    z = torch.where(one > two, one.flatten(), two.flatten())
                end.record()
                end.synchronize()
            return begin.elapsed_time(end), z.device, z.tolist() if data else z.shape

        return run

    plain, inferred = (
        _run(worker(mode), data=data) for mode in (torch.no_grad, torch.inference_mode)
    )
    assert "aten::addmm" in plain[1] or "aten::mm" in plain[1]
    assert inferred == plain


def test_values_are_read_in_inference_mode_as_elsewhere() -> None:
    def worker() -> Any:
        with torch.inference_mode():
            count = torch.tensor([0, 3]).cuda()[1]
            made = torch.zeros(2, count), torch.randn((count, 2)).cuda()
            read = count.item(), int(count), float(count), bool(count), count.tolist()
            return [list(one.shape) for one in made], read, count.cpu().numpy().item()

    assert _run(worker, data=True)[0] == ([[2, 3], [3, 2]], (3, 3, 3.0, True, 3), 3)
