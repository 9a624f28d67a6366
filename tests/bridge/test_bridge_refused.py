"""The one table of names that are refused: each of them is, by its name and with the way out."""

import importlib

import pytest
from bridge_devices import on_ranks

from kernbench.errors import UnsupportedError
from kernbench.runtime_api.refused_names import REFUSED, refusal

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


_NEWER = {
    f"{module}.{name}"
    for module in ("torch.cuda", "torch.cuda.graphs")
    for name in ("export_dot", "export_graph_data")
}
"""Names that PyTorch 2.13 does not have."""


@pytest.mark.filterwarnings("ignore:torch.compile is not simulated")  # `cond` compiles itself
def test_every_name_of_the_table_is_refused_in_ranks() -> None:
    def rank_main(rank: int) -> dict[str, str]:
        x = torch.ones(4, device="cuda")
        # What torch.cond itself checks before it is an operation.
        given = {"torch.cond": (x.sum() > 0, torch.sin, torch.cos, (x,))}
        told = {}
        for path in REFUSED:
            module, _, name = path.rpartition(".")
            if path in _NEWER and not hasattr(importlib.import_module(module), name):
                continue
            call = getattr(importlib.import_module(module), name)
            with pytest.raises(UnsupportedError) as raised:
                call(*given.get(path, ()))
            told[path] = str(raised.value)
        return told

    (told,) = on_ranks(rank_main)
    assert told.keys() >= REFUSED.keys() - _NEWER
    for path in told:
        hint = REFUSED[path]
        title, *_, last = told[path].splitlines()
        assert title.endswith(f".{path.rpartition('.')[2]} is not simulated"), path
        assert last == f"  hint: {hint}" if hint else "hint" not in told[path], path
        assert "test_bridge_refused.py" in told[path]


def test_what_is_refused_in_ranks_works_outside_of_them() -> None:
    model = torch.nn.Linear(2, 2)
    assert torch.nn.DataParallel(model).module is model

    def rank_main(rank: int) -> bool:
        # Programs ask so before they take the module out.
        return isinstance(torch.nn.Linear(2, 2), torch.nn.DataParallel)

    assert on_ranks(rank_main) == [False]
    assert torch.nn.DataParallel(model).module is model


def test_a_profiler_of_cuda_starts_and_stops() -> None:
    def rank_main(rank: int) -> None:
        with torch.cuda.profiler.profile():
            torch.ones(4, device="cuda")

    on_ranks(rank_main)


@pytest.mark.parametrize("name", ["torch.compile", "torch.cuda", "torch.distributed.rpc", ""])
def test_what_runs_is_not_in_the_table(name: str) -> None:
    assert refusal(name) is None
