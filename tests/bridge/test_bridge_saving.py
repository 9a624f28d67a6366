"""`torch.save`, `torch.load`, `pickle` and `distributed.checkpoint` in ranks."""

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench.errors import KernbenchError, NoDataError, UnsupportedError

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
CUDA = "cuda:0"


def _reloaded(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, CUDA),
        ({"weights_only": False}, CUDA),
        ({"map_location": "cpu"}, "cpu"),
        ({"map_location": "cuda"}, CUDA),
        ({"map_location": CUDA}, CUDA),
        ({"map_location": torch.device("cuda", 0)}, CUDA),
        ({"map_location": {"cuda:0": "cpu"}}, "cpu"),
        ({"map_location": lambda storage, _: storage}, "cpu"),
        ({"map_location": lambda storage, _: storage.cuda(0)}, CUDA),
    ],
)
def test_a_training_state_is_saved_and_loaded(options: Any, place: Any) -> None:
    def worker(_: int) -> Any:
        model = torch.nn.Linear(3, 2).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        loaded = _reloaded(saved, **options)
        weight = loaded["model"]["weight"]
        moment = loaded["optimizer"]["state"][0]["exp_avg"]
        assert weight.tolist() == model.weight.tolist()
        return str(weight.device), str(moment.device)

    assert on_ranks(worker) == [(place, place)]


def test_what_shares_memory_shares_it_when_loaded() -> None:
    def worker(_: int) -> Any:
        x = torch.arange(6.0, device="cuda")
        before = torch.cuda.memory_allocated()
        loaded = _reloaded({"all": x, "part": x[2:4]})
        took = torch.cuda.memory_allocated() - before
        loaded["part"].zero_()
        return loaded["all"].tolist(), took

    assert on_ranks(worker) == [([0, 1, 0, 0, 4, 5], 512)]


def test_tensors_are_pickled_with_their_place() -> None:
    def worker(_: int) -> Any:
        x = torch.arange(3.0, device="cuda")
        other = pickle.loads(pickle.dumps(x))
        return str(other.device), other.tolist()

    assert on_ranks(worker) == [(CUDA, [0, 1, 2])]


def test_a_file_of_another_ranks_device_needs_map_location(tmp_path: Path) -> None:
    file = tmp_path / "x.pt"

    def worker(rank: int) -> Any:
        torch.cuda.set_device(rank)
        x = torch.ones(2, device="cuda")
        if rank == 0:
            torch.save(x, file)
        torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
        torch.distributed.all_reduce(x)
        torch.distributed.destroy_process_group()
        if rank == 1:
            said = r"(?s)\[M14\] rank 1 used cuda:0.*map_location='cuda:1'"
            with pytest.raises(KernbenchError, match=said):
                torch.load(file)
        return str(torch.load(file, map_location=f"cuda:{rank}").device)

    assert on_ranks(worker, 2) == ["cuda:0", "cuda:1"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_without_numbers_nothing_is_written(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    file, folder = tmp_path / "x.pt", tmp_path / "sharded"
    torch.save(torch.ones(2), file)
    dcp.save({"x": torch.ones(2)}, checkpoint_id=folder, no_dist=True)
    files = [file, *folder.iterdir()]
    before = [each.read_bytes() for each in files]

    def worker(_: int) -> Any:
        x, linear = torch.ones(2, device="cuda"), torch.nn.Linear(2, 2, device="cuda")
        for old in (False, True):
            with pytest.raises(NoDataError, match="writes the values of a tensor on its device"):
                torch.save({"model": [x]}, file, _use_new_zipfile_serialization=old)
        with pytest.raises(NoDataError, match="writes the values of a tensor on its device"):
            dcp.save({"x": x}, checkpoint_id=folder, no_dist=True)
        with pytest.raises(dcp.api.CheckpointException, match="writes the values of a tensor"):
            dcp.save({"linear": linear}, checkpoint_id=folder, no_dist=True)
        assert [each.read_bytes() for each in files] == before
        torch.save({"step": torch.ones(1)}, file)  # a tensor of the host has values
        assert torch.load(file)["step"].item() == 1.0
        with pytest.raises(NoDataError, match="writes the values of a tensor on its device"):
            pickle.dumps(torch.ones(2, device="cuda"))

    on_ranks(worker, data=False)


def test_a_sharded_training_state_goes_through_a_checkpoint(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def worker(rank: int) -> Any:
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=2)
        mesh = init_device_mesh("cuda", (2,))

        def trained(seed: int) -> Any:
            torch.manual_seed(seed)
            model = torch.nn.Linear(4, 2).cuda()
            fully_shard(model, mesh=mesh)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()
            return model, optimizer

        model, optimizer = trained(0)
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=tmp_path)
        expected = [one.to_local().tolist() for one in model.parameters()]
        model, optimizer = trained(1)
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=tmp_path)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        assert [one.to_local().tolist() for one in model.parameters()] == expected
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for module in (dcp, dcp.state_dict_saver):
                saved = module.async_save({"model": weights}, checkpoint_id=tmp_path / "later")
                assert "model.weight" in saved.result().state_dict_metadata
        assert any("async_save saves at once" in str(one.message) for one in told) or rank
        with pytest.raises(UnsupportedError, match="async_stager"):
            dcp.async_save({"model": weights}, async_stager=object())
        torch.distributed.destroy_process_group()
        return [str(one.device) for one in model.parameters()]

    assert on_ranks(worker, 2) == [["cuda:0"] * 2, ["cuda:1"] * 2]
