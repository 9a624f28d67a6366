"""The importable face and the context show the same names, which act on the running rank."""

import inspect
from collections.abc import Mapping
from contextvars import Context

import pytest

import kernbench.torch as torch
from kernbench.errors import KernbenchError
from kernbench.process.process import NoContextError
from kernbench.runtime_api.namespace import root
from kernbench.testing import Kernbench


class Net(torch.nn.Module):
    """Defined at import time, before any context exists."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones((2, 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def _names(tree: object) -> set[str]:
    return {name for name in dir(tree) if not name.startswith("_")}


def test_the_module_and_the_context_have_the_same_names() -> None:
    tree = root()
    assert set(tree) - {"__version__"} <= _names(torch)
    assert tree["__version__"] == torch.__version__
    parts = ["accelerator", "autograd", "cuda", "distributed", "multiprocessing", "nn", "optim"]
    parts += ["backends", "profiler", "random", "testing", "utils"]
    for part in parts:
        _check_part(getattr(torch, part), tree[part])


def _check_part(module: object, part: Mapping[str, object]) -> None:
    for name in {name for name in part if not name.startswith("_")}:
        shown, value = getattr(module, name), part[name]
        if isinstance(value, Mapping):
            _check_part(shown, value)
        else:
            assert shown is value


def test_a_module_defined_before_any_context_runs_in_a_worker(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        net = Net()
        y = net(torch.full((2, 2), float(rank)))
        assert isinstance(y, torch.Tensor)
        assert y.tolist() == [[2.0 * rank] * 2] * 2

    kernbench.spawn(worker, nprocs=2)


def test_what_is_not_simulated_is_named(kernbench: Kernbench) -> None:
    with pytest.raises(AttributeError, match=r"torch\.compile is not in kernbench"):
        torch.compile  # noqa: B018
    with pytest.raises(AttributeError, match=r"torch\.cuda\.MemPool is not simulated"):
        kernbench.context().cuda.MemPool  # noqa: B018


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("multiprocesing", "neither a context nor PyTorch has multiprocesing; did you mean `multi"),
        ("resluts", "neither a context nor PyTorch has resluts; did you mean `results`?"),
        ("zzzzzzzz", "neither a context nor PyTorch has zzzzzzzz"),
        ("compile", "torch.compile is not in kernbench.torch"),
    ],
)
def test_a_name_that_a_context_lacks(kernbench: Kernbench, name: str, said: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(kernbench.context(), name)
    assert str(caught.value).startswith(said)


def test_outside_of_any_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernbench.process.process._latest", None)
    with pytest.raises(NoContextError, match="no simulated machine is running here"):
        Context().run(torch.zeros, 3)  # as in a thread that has made no context


def test_the_context_stands_where_torch_would(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int, torch: object) -> None:
        ctx = torch
        assert ctx.distributed.get_rank() == rank  # type: ignore[attr-defined]
        x = ctx.arange(4, dtype=ctx.float32, device="cuda")  # type: ignore[attr-defined]
        assert (x + rank).tolist() == [rank + i for i in range(4)]

    ctx = kernbench.context()
    ctx.multiprocessing.spawn(worker, args=(2, ctx), nprocs=2)


def test_host_functions_inside_a_kernel_are_refused(kernbench: Kernbench) -> None:
    from kernbench import tl

    @tl.jit
    def kernel(x: object) -> None:
        torch.zeros(1)

    with kernbench.context():
        x = torch.zeros(4, device="cuda")
        with pytest.raises(KernbenchError, match="from inside a kernel"):
            kernel[1,](x)


def test_public_functions_say_what_they_do() -> None:
    tree = root()
    silent = [
        name for name, value in tree.items() if inspect.isfunction(value) and not value.__doc__
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("module", "some"),
    [
        ("torch", {"Tensor", "matmul", "ones"}),
        ("torch.distributed", {"ReduceOp", "all_reduce", "init_process_group"}),
        ("torch.nn", {"Linear", "Module", "functional"}),
        ("torch.optim", {"SGD", "lr_scheduler"}),
        ("torch.utils.data", {"DataLoader", "TensorDataset", "distributed"}),
    ],
)
def test_a_star_brings_all_names(module: str, some: set[str]) -> None:
    names: dict[str, object] = {}
    exec(f"from kernbench.{module} import *", names)
    assert some <= set(names)
    assert "not_simulated" not in names
