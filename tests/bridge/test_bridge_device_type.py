"""`torch.device` in ranks: a number names a device, and all else is as outside of ranks."""
# mypy: disable-error-code="name-defined, no-untyped-def, no-untyped-call"

import copy
import io
import pickle
from typing import Any

import pytest

import kernbench

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")


def test_a_number_names_a_device() -> None:
    def worker(rank: int) -> list[str]:
        torch.cuda.set_device(torch.device(rank))
        with torch.device(rank):
            inside = torch.zeros(2)
        made = (torch.device(rank), torch.device(device=rank), torch.ones(2, device=rank).device)
        return [*map(str, made), str(inside.device), str(torch.device("cpu"))]

    expected = [[f"cuda:{rank}"] * 4 + ["cpu"] for rank in range(2)]
    assert kernbench.torchrun_spawn(worker, nprocs=2).returned == expected
    if (
        torch.version.cuda is None
    ):  # a build with CUDA takes a number, whether a GPU is there or not
        with pytest.raises(RuntimeError):
            torch.device(0)


def test_it_is_the_class_of_devices() -> None:
    real = torch.device

    def worker(_: int) -> None:
        device = torch.device("cuda", 0)
        assert type(device) is real
        assert isinstance(device, torch.device)
        assert not isinstance("cuda", torch.device)
        assert type(device) == torch.device  # noqa: E721 - as programs ask
        assert {real: 1}[torch.device] == 1
        assert pickle.loads(pickle.dumps(device)) == copy.deepcopy(device) == device
        file = io.BytesIO()
        torch.save({"device": device}, file)
        file.seek(0)
        assert torch.load(file) == {"device": device}
        match device:
            case torch.device():
                pass
            case _:
                raise AssertionError

        def moved(x: Any, device: Any = None) -> Any:
            return x + 1

        kinds = {"x": torch.Tensor, "device": torch.device | None, "return": torch.Tensor}
        moved.__annotations__ |= kinds
        moved = torch.library.custom_op("kernbench_tests::moved", moved, mutates_args=())
        assert moved(torch.ones(2, device=device)).tolist() == [2.0, 2.0]

        def scripted(x, device: torch.device):  # noqa: ANN001, ANN202 - TorchScript reads them
            return x.to(device)

        assert torch.jit.script(scripted)(torch.ones(2), torch.device("cpu")).tolist() == [1.0, 1.0]
        with pytest.raises(RuntimeError, match="nonsense"):
            torch.device("nonsense")
        with pytest.raises(TypeError):
            torch.device()

    kernbench.torchrun_spawn(worker, nprocs=1)
    assert torch.device is real
