"""Where tensors are, as a program of PyTorch sees it."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bridge_devices import on_ranks
from bridge_programs import load

from kernbench.process.access import OwnershipError

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
BOTH = pytest.mark.parametrize("data", [True, False])
CUDA = "cuda:0"


def _one(worker: Callable[[], Any], *, data: bool = True, **options: Any) -> Any:
    return on_ranks(lambda _: worker(), 1, data=data, **options)[0]


@BOTH
def test_a_tensor_tells_that_it_is_on_the_device(data: bool) -> None:
    def worker() -> Any:
        x = torch.ones(2, 3, device="cuda")
        return (str(x.device), x.is_cuda, x.get_device(), x.type(), str(x.untyped_storage().device))

    assert _one(worker, data=data) == (CUDA, True, 0, "torch.cuda.FloatTensor", CUDA)


@BOTH
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2).cuda(),
        lambda: torch.zeros(2).to(0),
        lambda: torch.zeros(2).to(torch.zeros(1, device="cuda"), True),
        lambda: torch.tensor([1.0], device="cuda"),
        lambda: torch.as_tensor([1], device="cuda"),
        lambda: torch.empty_like(torch.zeros(2), device="cuda"),
        lambda: torch.zeros(2, device="cuda").new_ones(3),
        lambda: torch.zeros(2).type(torch.cuda.HalfTensor),
        lambda: torch.cuda.FloatTensor([1, 2]),
        lambda: copy.deepcopy(torch.zeros(2, device="cuda")),
        lambda: torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
        lambda: torch.nn.Linear(2, 2).to("cuda").weight,
        lambda: torch.zeros(4, device="cuda")[torch.tensor([0, 1])],
        lambda: torch.zeros(4, device="cuda") * torch.tensor(2.0),
        lambda: torch.zeros(4, device="cuda").copy_(torch.ones(4)),
    ],
)
def test_what_is_made_there_is_there(make: Callable[[], Any], data: bool) -> None:
    assert _one(lambda: str(make().device), data=data) == CUDA


@BOTH
def test_a_block_and_a_default_say_where_tensors_are_made(data: bool) -> None:
    def worker() -> Any:
        with torch.device("cuda"):
            inside = torch.zeros(1), torch.nn.Linear(1, 1).weight
        torch.set_default_device("cuda")
        default = torch.zeros(1)
        torch.set_default_device(None)
        return [str(one.device) for one in (*inside, default, torch.zeros(1))]

    assert _one(worker, data=data) == [CUDA, CUDA, CUDA, "cpu"]


@BOTH
def test_tied_parameters_stay_tied(data: bool) -> None:
    def worker() -> Any:
        model = torch.nn.Linear(2, 2)
        model.other = model.weight
        before = model.weight
        model.cuda()
        return model.other is model.weight is before, str(before.device)

    assert _one(worker, data=data) == (True, CUDA)


def test_a_device_tensor_is_no_numpy_array() -> None:
    def worker() -> Any:
        x = torch.ones(2, device="cuda")
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            x.numpy()
        return x.tolist(), x.cpu().numpy().tolist(), x.numpy(force=True).tolist()

    assert _one(worker) == ([1, 1], [1, 1], [1, 1])


@BOTH
@pytest.mark.parametrize(
    "call",
    [
        lambda there, here: there + here,
        lambda there, here: here @ there,
        lambda there, here: torch.cat([there, here]),
        lambda there, here: there.index_select(0, here[0].long()),
        lambda there, here: here[there.long()],
        lambda there, here: torch.nn.Linear(3, 3).cuda()(here),
    ],
)
def test_operands_on_two_devices_are_refused(call: Callable[..., Any], data: bool) -> None:
    def worker() -> Any:
        here = torch.ones(3, 3)
        with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu") as caught:
            call(torch.ones(3, 3, device="cuda"), here)
        return str(caught.value)

    text = _one(worker, data=data)
    assert "float32 on cuda:0" in text or "int64 on cuda:0" in text
    assert "hint: move the tensor" in text
    assert f"at {__file__}" in text


@BOTH
def test_what_cpp_code_makes_from_nothing_fits_the_device(data: bool) -> None:
    def worker() -> Any:
        query = torch.ones(1, 2, 4, 8, device="cuda", requires_grad=True)
        attend = torch.nn.functional.scaled_dot_product_attention
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            out = attend(query, query, query, is_causal=True)
        out.sum().backward()
        return str(out.device), str(query.grad.device)

    assert _one(worker, data=data) == (CUDA, CUDA)


def test_a_tensor_of_another_device_is_refused_by_name() -> None:
    def worker(rank: int) -> Any:
        with pytest.raises(
            Exception,
            match=rf"\[M14\] rank {rank} used cuda:{1 - rank}, the device of rank {1 - rank}",
        ):
            torch.zeros(1, device=f"cuda:{1 - rank}")

    on_ranks(worker, 2)


@BOTH
def test_a_storage_frees_its_memory_when_it_shrinks(data: bool) -> None:
    def worker() -> Any:
        x = torch.ones(1 << 20, device="cuda")
        used = [torch.cuda.memory_allocated()]
        for size in (0, 4 << 20):
            x.untyped_storage().resize_(size)
            used.append(torch.cuda.memory_allocated())
        del x
        return [*used, torch.cuda.memory_allocated()]

    assert _one(worker, data=data) == [4 << 20, 0, 4 << 20, 0]


def test_pinned_memory_is_told() -> None:
    def worker() -> Any:
        x = torch.ones(2)
        return x.is_pinned(), x.pin_memory().is_pinned(), x.pin_memory().cuda().is_pinned()

    assert _one(worker) == (False, True, False)


def test_without_numbers_a_tensor_still_tells_its_size() -> None:
    text = _one(lambda: repr(torch.ones(2, 3, device="cuda")), data=False)
    assert text == "tensor(..., device='cuda:0', size=(2, 3))"


def test_a_tensor_of_another_rank_is_refused_by_name() -> None:
    shared: list[Any] = []

    def worker(rank: int) -> Any:
        torch.cuda.set_device(rank)
        shared.append(torch.ones(2, 3, device="cuda"))
        if rank == 1:
            with pytest.raises(
                OwnershipError, match=r"(?s)rank 1 used a tensor of rank 0.*tensor \[2, 3\] float32"
            ):
                shared[0] + 1

    on_ranks(worker, 2)


@BOTH
def test_sharding_without_a_mesh_goes_to_the_device(data: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    def worker(rank: int) -> list[str]:
        torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
        torch.cuda.set_device(rank)
        with torch.device("meta"):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        model.to_empty(device=torch.accelerator.current_accelerator())
        places = {str(each.device) for each in model.parameters()}
        loss = model(torch.ones(2, 4, device="cuda")).sum()
        loss.backward()
        places |= {str(each.grad.to_local().device) for each in model.parameters()}
        torch.distributed.destroy_process_group()
        return [*places, str(loss.device), torch._C._get_accelerator().type]

    for rank, found in enumerate(on_ranks(worker, 2, data=data)):
        assert found == [f"cuda:{rank}", f"cuda:{rank}", "cuda"]


def test_a_storage_that_a_collective_has_used_changes_its_size() -> None:
    def worker(rank: int) -> int:
        torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
        x = torch.ones(4, device=f"cuda:{rank}")
        torch.distributed.all_reduce(x)
        x.untyped_storage().resize_(0)
        torch.distributed.destroy_process_group()
        return int(x.untyped_storage().nbytes())

    assert on_ranks(worker, 2) == [0, 0]


def test_a_tensor_of_shards_is_where_its_shards_are() -> None:
    def worker() -> tuple[str, str]:
        from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

        parts = [torch.ones(2, 3, device="cuda"), torch.ones(2, 1, device="cuda")]
        wrapped = LocalShardsWrapper(parts, [(0, 0), (0, 3)])
        host = LocalShardsWrapper([part.cpu() for part in parts], [(0, 0), (0, 3)])
        return str(wrapped.device), str(host.device)

    assert _one(worker) == (CUDA, "cpu")


@BOTH
def test_a_program_that_is_exported_makes_tensors_where_its_module_is(data: bool) -> None:
    def forward(self: Any, x: Any) -> Any:
        return torch.nn.Linear.forward(self, x) + torch.arange(4, device=x.device)

    counting = type("Counting", (torch.nn.Linear,), {"forward": forward})

    def worker() -> tuple[str, str]:
        x = torch.ones(2, 4)
        host = torch.export.export(counting(4, 4), (x,)).module()(x)
        x = x.to("cuda")
        made = torch.export.export(counting(4, 4).to("cuda"), (x,)).module()(x)
        return str(host.device), str(made.device)

    assert _one(worker, data=data) == ("cpu", CUDA)


def test_a_shape_may_be_a_value_of_the_device() -> None:
    def worker() -> Any:
        size = torch.tensor([3, 2], device="cuda")
        host, here = torch.zeros(size[0]), torch.zeros((size[0], size[1]), device="cuda")
        return list(host.shape), str(host.device), list(here.shape), str(here.device)

    assert _one(worker) == ([3], "cpu", [3, 2], CUDA)


def test_a_result_is_given_to_a_tensor_of_the_same_device_only() -> None:
    def mixes(_: int) -> None:
        here, there = torch.ones(4), torch.ones(4, device="cuda")
        for given, out in ((there, here), (here, there)):
            with pytest.raises(RuntimeError, match="on the same device"):
                torch.add(given, given, out=out)
        assert here.device.type == "cpu"
        assert torch.add(there, there, out=torch.empty(4, device="cuda")).is_cuda

    on_ranks(mixes)


def test_a_storage_of_another_size_is_used_again_as_such() -> None:
    def resizes(_: int) -> int:
        x = torch.empty(1024, device="cuda")
        x.untyped_storage().resize_(16)
        del x
        y = torch.ones(1024, device="cuda")
        assert y.is_cuda
        return int(torch.cuda.memory_allocated())

    assert on_ranks(resizes) == [4096]


@BOTH
def test_a_number_of_numpy_names_a_device(data: bool) -> None:
    def worker() -> Any:
        first = np.int64(0)
        torch.cuda.set_device(first)
        made = torch.zeros(2, device=first), torch.zeros(2).cuda(first), torch.zeros(2).to(first)
        return [str(each.device) for each in made]

    assert _one(worker, data=data) == [CUDA] * 3


@BOTH
def test_old_classes_take_the_forms_of_those_of_the_host(data: bool) -> None:
    outcomes = load("old_classes").outcomes
    expected = outcomes(torch, "cpu", values=data)
    found = _one(lambda: outcomes(torch.cuda, "cuda", values=data), data=data)
    assert found == expected
    assert len(found) > 500


@BOTH
@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_the_name_of_each_type_and_the_default_class(data: bool) -> None:
    def worker() -> Any:
        names = [torch.ones(1, device="cuda").to(each).type() for each in _KINDS]
        torch.set_default_tensor_type(torch.cuda.HalfTensor)
        found = [(x.dtype, x.device.type) for x in (torch.ones(2), torch.ones(2, device="cpu"))]
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        found.append((torch.zeros(1).dtype, torch.zeros(1).device.type))
        with pytest.raises(TypeError, match="only floating-point types are supported"):
            torch.set_default_tensor_type(torch.cuda.LongTensor)
        torch.set_default_tensor_type(torch.FloatTensor)
        found.append((torch.zeros(1).dtype, torch.zeros(1).device.type))
        with pytest.raises(RuntimeError, match="expects device type: cuda but device type: cpu"):
            torch.cuda.FloatTensor(2, device="cpu")
        with pytest.raises(TypeError, match=r"expected torch.cuda.FloatTensor \(got torch.Float"):
            torch.cuda.FloatTensor(torch.ones(2))
        assert torch.ones(2).new(3).device.type == "cpu"
        return names, found

    names, found = _one(worker, data=data)
    on_host = [torch.ones(1).to(each).type() for each in _KINDS]
    assert names == [name.replace("torch.", "torch.cuda.") for name in on_host]
    half, double, single = torch.float16, torch.float64, torch.float32
    assert found == [(half, "cuda"), (half, "cpu"), (double, "cuda"), (single, "cpu")]


_KINDS = [torch.float32, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2]
