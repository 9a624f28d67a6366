"""Sparse tensors of the host, as without simulated devices; on a device they are refused."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_costs import on_one_rank

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Sparse"),
]
torch = pytest.importorskip("torch")
PLACES, VALUES = [[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0]


def _made() -> Any:
    return torch.sparse_coo_tensor(torch.tensor(PLACES), torch.tensor(VALUES), (2, 3))


def _results() -> list[Any]:
    sparse, dense = _made(), torch.arange(6.0).view(3, 2)
    rows = sparse.to_sparse_csr()
    found = [
        sparse,
        sparse + sparse,
        sparse * 2,
        sparse.t(),
        sparse.coalesce(),
        torch.sparse.mm(sparse, dense),
        torch.sparse.sum(sparse, 1),
        torch.sparse.softmax(sparse.coalesce(), 1),
        rows @ dense,
        sparse.clone().mul_(3),
        torch.cat([sparse, sparse]),
    ]
    torch.manual_seed(0)
    table = torch.nn.Embedding(6, 2, sparse=True)
    optimizers = torch.optim.SparseAdam(table.parameters()), torch.optim.SGD(table.parameters())
    for optimizer in optimizers:
        table(torch.tensor([1, 2, 2])).square().sum().backward()
        found.append(table.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    return [each.to_dense().detach().clone() for each in [*found, table.weight]]


@pytest.mark.parametrize("data", [True, False])
def test_operations_on_the_host_are_pytorchs_own(data: bool) -> None:
    found: list[Any] = []
    names = on_one_rank(lambda: found.extend(_results()), data=data)
    assert names == []
    for ours, theirs in zip(found, _results(), strict=True):
        assert torch.equal(ours, theirs)


def _of_device_parts() -> None:
    torch.sparse_coo_tensor(torch.tensor(PLACES).cuda(), torch.tensor(VALUES).cuda(), (2, 3))


def _of_a_table() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True).cuda()
    table(torch.tensor([1]).cuda()).sum().backward()


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize(
    "worker",
    [
        lambda: _made().cuda(),
        lambda: torch.sparse_coo_tensor(PLACES, VALUES, (2, 3), device="cuda"),
        _of_device_parts,
        lambda: torch.ones(3, device="cuda").to_sparse(),
        lambda: torch.sparse.mm(_made(), torch.ones(3, 2, device="cuda")),
        _of_a_table,
    ],
)
def test_on_a_device_they_are_refused_by_name(worker: Callable[[], Any], data: bool) -> None:
    with pytest.raises(Exception, match=r"sparse.* on a device is not simulated") as raised:
        on_one_rank(worker, data=data)
    assert "UnsupportedError" in str(raised.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda group, one: group.all_reduce(one),
        lambda group, one: group.broadcast(one, 0),
        lambda group, one: group.all_gather([one], one),
    ],
)
def test_collectives_of_them_are_refused_by_name(call: Callable[[Any, Any], Any]) -> None:
    def worker() -> None:
        group = torch.distributed
        group.init_process_group("gloo", rank=0, world_size=1, init_method="tcp://x:1")
        call(group, _made())

    with pytest.raises(Exception, match=r"layout torch\.sparse_coo is not simulated") as raised:
        on_one_rank(worker)
    assert "UnsupportedError" in str(raised.value)
