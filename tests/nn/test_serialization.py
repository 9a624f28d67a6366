"""Files of `torch.save`: what comes back, where it goes, and PyTorch's files."""

import copy
import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernbench.torch as ours
from kernbench.errors import NoDataError, UnsupportedError
from kernbench.process.access import OwnershipError
from kernbench.testing import Kernbench
from kernbench.torch import nn

TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"]
TYPES += ["bool", "complex64", "complex128"]


def _checkpoint(lib: Any) -> dict[str, Any]:
    model = lib.nn.Sequential(lib.nn.Linear(3, 2), lib.nn.BatchNorm1d(2))
    optimizer = lib.optim.AdamW(model.parameters(), lr=0.25)
    x = lib.arange(12, dtype=lib.float32).reshape(4, 3)
    model(x).square().sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def _things(lib: Any) -> dict[str, Any]:
    rows = lib.arange(12).reshape(3, 4)
    return {
        **{name: (lib.arange(5) - 2).to(getattr(lib, name)) for name in TYPES},
        "turned": rows.t(),
        "part": rows[1:, ::2],
        "single": lib.tensor(2.5),
        "empty": lib.zeros(0, 3),
        "parameter": lib.nn.Parameter(lib.ones(2), requires_grad=False),
        "leaf": lib.ones(2, requires_grad=True),
        "size": rows.shape,
        "dtype": lib.bfloat16,
        "device": lib.device("cpu"),
        "plain": [1, 2.5, None, True, "text", b"bytes", (1, {2, 3}), 1j, 1 << 70],
        "ordered": OrderedDict(a=1),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value).__name__, {key: _plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        kind = "Parameter" if "Parameter" in type(value).__name__ else "Tensor"
        return kind, str(value.dtype), value.requires_grad, list(value.shape), value.tolist()
    if type(value).__name__ in {"Size", "dtype", "DType", "device", "Device"}:
        return str(value)
    return value


def _copied(obj: Any, **options: Any) -> Any:
    file = io.BytesIO()
    ours.save(obj, file)
    file.seek(0)
    return ours.load(file, **options)


def test_what_is_saved_comes_back(kernbench: Kernbench, tmp_path: Path) -> None:
    with kernbench.context():
        for make in (_things, _checkpoint):
            made = make(ours)
            ours.save(made, tmp_path / "file.pt")
            assert _plain(ours.load(tmp_path / "file.pt")) == _plain(made)
        ours.save(made, str(tmp_path / "again.pt"))
    assert (tmp_path / "again.pt").read_bytes() == (tmp_path / "file.pt").read_bytes()


@pytest.mark.torch
@pytest.mark.parametrize("make", [_things, _checkpoint])
def test_files_of_pytorch_are_read_and_it_reads_ours(
    kernbench: Kernbench, tmp_path: Path, make: Any
) -> None:
    torch = pytest.importorskip("torch")
    with kernbench.context():
        theirs = make(torch)
        torch.save(theirs, tmp_path / "theirs.pt")
        assert _plain(ours.load(tmp_path / "theirs.pt")) == _plain(theirs)
        mine = make(ours)
        ours.save(mine, tmp_path / "ours.pt")
        assert _plain(torch.load(tmp_path / "ours.pt")) == _plain(mine)


def test_training_goes_on_from_a_file(kernbench: Kernbench) -> None:
    with kernbench.context():
        model = nn.Linear(3, 2)
        optimizer = ours.optim.Adam(model.parameters(), lr=0.1)

        def step(model: nn.Linear, optimizer: ours.optim.Optimizer) -> None:
            optimizer.zero_grad()
            model(ours.ones(1, 3)).square().sum().backward()
            optimizer.step()

        step(model, optimizer)
        state = _copied({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        again = nn.Linear(3, 2)
        its_own = ours.optim.Adam(again.parameters(), lr=0.5)
        again.load_state_dict(state["model"])
        its_own.load_state_dict(state["optimizer"])
        step(model, optimizer)
        step(again, its_own)
        assert again.weight.tolist() == model.weight.tolist()


def test_tensors_that_show_the_same_share_their_memory_again(kernbench: Kernbench) -> None:
    with kernbench.context():
        x = ours.ones(2)
        first, second, other = _copied([x, x.detach(), x.clone()])
        first[0] = 5
        assert (second.tolist(), other.tolist()) == ([5, 1], [1, 1])


def test_where_tensors_go(kernbench: Kernbench) -> None:
    file = io.BytesIO()
    told: list[str] = []

    def worker(rank: int) -> None:
        if rank == 0:
            ours.save([ours.ones(2), ours.ones(2, device="cpu")], file)
        ours.distributed.init_process_group("nccl")
        ours.distributed.barrier()
        mine = f"cuda:{rank}"
        wanted: list[tuple[Any, list[str]]] = [
            ("cpu", ["cpu", "cpu"]),
            (mine, [mine, mine]),
            (ours.device("cuda"), [mine, mine]),
            ({"cuda:0": mine}, [mine, "cpu"]),
            (lambda storage, location: storage, ["cpu", "cpu"]),
            (lambda storage, location: storage.cuda(), [mine, mine]),
        ]
        for place, expected in wanted:
            found = ours.load(io.BytesIO(file.getvalue()), map_location=place)
            assert [str(each.device) for each in found] == expected
        saved = io.BytesIO(file.getvalue())
        if rank == 0:
            assert str(ours.load(saved, lambda storage, location: None)[0].device) == mine
            return
        try:
            ours.load(saved)
        except OwnershipError as error:
            told.append(str(error))

    kernbench.spawn(worker, nprocs=2)
    assert len(told) == 1
    assert "[M14]" in told[0]


class Whole(nn.Module):
    """A module that is saved itself, not its state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def test_objects_of_classes_need_the_word_of_the_user(kernbench: Kernbench) -> None:
    with kernbench.context():
        model = Whole()
        with pytest.raises(pickle.UnpicklingError, match=r"Whole, which weights_only=True"):
            _copied(model)
        again = _copied(model, weights_only=False)
        assert isinstance(again, Whole)
        assert again(ours.ones(1, 2)).tolist() == model(ours.ones(1, 2)).tolist()


def test_what_cannot_be_saved_or_loaded(kernbench: Kernbench) -> None:
    with kernbench.context():
        with pytest.raises(pickle.UnpicklingError, match="no archive"):
            ours.load(io.BytesIO(b"text"))
        with pytest.raises(UnsupportedError, match=r"load\(mmap=\)"):
            ours.load("file", mmap=True)
        with pytest.raises(UnsupportedError, match=r"load\(encoding=\)"):
            ours.load("file", encoding="latin1")
        with pytest.raises(UnsupportedError, match=r"save\(pickle_protocol=\)"):
            ours.save(3, io.BytesIO(), pickle_protocol=5)
        with pytest.raises(UnsupportedError, match=r"saving a tensor of torch\.float8_e5m2"):
            _copied(ours.ones(2).to(ours.float8_e5m2))
        with pytest.raises(FileNotFoundError):
            ours.load("nowhere.pt")
    with kernbench.context(data=False), pytest.raises(NoDataError, match="data is off"):
        _copied(ours.ones(2))


def _altered(changes: dict[str, Callable[[bytes], bytes | None]]) -> io.BytesIO:
    """Returns the file of a tensor of 3 elements, with some of its entries changed or left out."""
    file, altered = io.BytesIO(), io.BytesIO()
    ours.save(ours.ones(3, dtype=ours.uint8), file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(altered, "w") as new:
        for name in old.namelist():
            change = changes.get(name.removeprefix("archive/"), bytes)
            content = change(old.read(name))
            if content is not None:
                new.writestr(name, content)
    altered.seek(0)
    return altered


@pytest.mark.parametrize(
    ("entry", "change", "said"),
    [
        ("data.pkl", lambda it: it.replace(b"K\x03\x85", b"K\x07\x85"), "beyond its memory"),
        ("data/0", lambda it: it[:1], "damaged: tensor 0 has 1 bytes, expected 3"),
        ("data/0", lambda it: None, "damaged: archive/data/0 cannot be read: There is no item"),
        ("data.pkl", lambda it: None, "damaged: it has no data.pkl"),
        ("data.pkl", lambda it: it[:-1], "damaged: archive/data.pkl cannot be read: EOFError"),
        ("data.pkl", lambda it: b"~text", "damaged: archive/data.pkl cannot be read: KeyError"),
    ],
)
def test_a_damaged_file_is_refused(
    entry: str, change: Any, said: str, kernbench: Kernbench
) -> None:
    with kernbench.context():
        with pytest.raises(pickle.UnpicklingError, match=said) as raised:
            ours.load(_altered({entry: change}))
        assert f"{Path(__file__).name}:" in str(raised.value)


def test_errors_of_callbacks_come_through(kernbench: Kernbench) -> None:
    def place(tensor: Any, location: str) -> Any:
        raise KeyError(location)

    with kernbench.context(), pytest.raises(KeyError, match="cpu"):
        ours.load(_altered({}), place)


def test_a_file_at_its_end_has_nothing_to_load(kernbench: Kernbench) -> None:
    file = io.BytesIO()
    with kernbench.context():
        ours.save(3, file)
        with pytest.raises(pickle.UnpicklingError, match=r"(?s)nothing is left .* call seek\(0\)"):
            ours.load(file)


@pytest.mark.parametrize(
    "name", [b"torch\nSize", b"torch\nfloat32", b"torch._utils\n_rebuild_tensor_v2"]
)
def test_a_file_sets_no_attribute_of_what_it_names(name: bytes, kernbench: Kernbench) -> None:
    evil = b"\x80\x02c" + name + b"\n(N}X\x04\x00\x00\x00evilK\x01stb."
    with kernbench.context(), pytest.raises(pickle.UnpicklingError, match="sets the state of"):
        ours.load(_altered({"data.pkl": lambda _: evil}))
    assert not hasattr(ours.Size, "evil")
    assert not hasattr(ours.float32, "evil")


def test_states_of_schedulers_and_optimizers_are_saved(kernbench: Kernbench) -> None:
    with kernbench.context():
        mine = ours.nn.Parameter(ours.ones(2))
        optimizer = ours.optim.SGD([mine], lr=1.0)
        plan = ours.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2])
        assert _copied(plan.state_dict()) == plan.state_dict()
        for again in _copied(optimizer, weights_only=False), copy.deepcopy(optimizer):
            (other,) = again.param_groups[0]["params"]
            other.grad = ours.ones(2)
            again.step()
            assert other.tolist() == [0.0, 0.0]
        assert mine.tolist() == [1.0, 1.0]
