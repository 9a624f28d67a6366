"""What the host reads: values, texts, waits, and that nothing reads past the registry."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.errors import NoDataError
from kernbench.memory import Buffer, UninitialisedReadError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor_methods import _HOST_READ_BARRIERS
from kernbench.sim_engine.data_executor import DataExecutor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.tensors.tensor import Tensor

Call = Callable[[Any, Any, Any, Any], Any]


def _calls(names: str, make: Callable[[str], Call]) -> dict[str, Call]:
    return {name: make(name) for name in names.split()}


# How to call each public method that needs arguments; `x` is 2 x 3, `v` has one element, both on a
# device, float32; `m` is a mask and `i` an index of x's shape.
CALLS: Final[dict[str, Call]] = {
    "backward": lambda x, v, m, i: (x.requires_grad_() * 2).sum().backward(),
    "register_hook": lambda x, v, m, i: x.requires_grad_().register_hook(lambda g: g),
    "register_post_accumulate_grad_hook": lambda x, v, m, i: (
        x.requires_grad_().register_post_accumulate_grad_hook(print)
    ),
    "record_stream": lambda x, v, m, i: x.record_stream(torch.cuda.current_stream()),
    "retain_grad": lambda x, v, m, i: x.requires_grad_().retain_grad(),
    **_calls(
        """
        add add_ sub sub_ mul mul_ div div_ multiply divide true_divide pow pow_ remainder
        remainder_ fmod fmod_ floor_divide floor_divide_ maximum minimum logaddexp logaddexp2
        eq ne lt le gt ge isclose
        equal allclose logical_and logical_or logical_xor copy_ view_as expand_as reshape_as
        type_as clamp clamp_ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__
        __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __iadd__ __isub__
        __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __eq__ __ne__ __lt__ __le__ __gt__
        __ge__
        """,
        lambda name: lambda x, v, m, i: getattr(x, name)(x),
    ),
    **_calls(
        """
        logical_and_ logical_or_ bitwise_and bitwise_and_ bitwise_or bitwise_or_ bitwise_xor
        bitwise_xor_ __and__ __or__ __xor__ __rand__ __ror__ __rxor__ __iand__ __ior__ __ixor__
        """,
        lambda name: lambda x, v, m, i: getattr(m, name)(m),
    ),
    **_calls(
        "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __rlshift__ __rrshift__ "
        "__ilshift__ __irshift__",
        lambda name: lambda x, v, m, i: getattr(i, name)(2),
    ),
    **_calls(
        "item is_nonzero __bool__ __complex__ __float__ __int__",
        lambda name: lambda x, v, m, i: getattr(v, name)(),
    ),
    "imag": lambda x, v, m, i: x.cfloat().imag,
    "bitwise_not": lambda x, v, m, i: m.bitwise_not(),
    "__invert__": lambda x, v, m, i: ~m,
    "__index__": lambda x, v, m, i: i[0, 0].__index__(),
    "__contains__": lambda x, v, m, i: 1.0 in x,
    "__format__": lambda x, v, m, i: f"{v}",
    "__getitem__": lambda x, v, m, i: (x[0], x[:, 1:], x[None, ..., 0], x[i[0]]),
    "__setitem__": lambda x, v, m, i: x.__setitem__(m, 0),
    "__matmul__": lambda x, v, m, i: x @ x.T,
    "matmul": lambda x, v, m, i: x.matmul(x.T),
    "mm": lambda x, v, m, i: x.mm(x.T),
    "bmm": lambda x, v, m, i: x[None].bmm(x.T[None]),
    "mv": lambda x, v, m, i: x.mv(x[0]),
    "dot": lambda x, v, m, i: x[0].dot(x[0]),
    "inner": lambda x, v, m, i: x.inner(x),
    "outer": lambda x, v, m, i: x[0].outer(x[0]),
    "addmm": lambda x, v, m, i: x[:, :2].addmm(x, x.T),
    "baddbmm": lambda x, v, m, i: x[:, :2].baddbmm(x[None], x.T[None]),
    "addcmul": lambda x, v, m, i: x.addcmul(x, x),
    "addcmul_": lambda x, v, m, i: x.addcmul_(x, x),
    "addcdiv": lambda x, v, m, i: x.addcdiv(x, x),
    "addcdiv_": lambda x, v, m, i: x.addcdiv_(x, x),
    "lerp": lambda x, v, m, i: x.lerp(x, 0.5),
    "lerp_": lambda x, v, m, i: x.lerp_(x, 0.5),
    "masked_fill": lambda x, v, m, i: x.masked_fill(m, 1),
    "masked_fill_": lambda x, v, m, i: x.masked_fill_(m, v),
    "fill_": lambda x, v, m, i: x.fill_(v),
    "gather": lambda x, v, m, i: x.gather(1, i),
    "scatter": lambda x, v, m, i: x.scatter(1, i, x),
    "scatter_": lambda x, v, m, i: x.scatter_(1, i, x),
    "scatter_add_": lambda x, v, m, i: x.scatter_add_(1, i, x),
    "scatter_add": lambda x, v, m, i: x.scatter_add(1, i, x),
    "index_add": lambda x, v, m, i: x.index_add(0, i[0], x[:1].expand(3, 3)),
    "index_add_": lambda x, v, m, i: x.index_add_(0, i[0], x[:1].expand(3, 3)),
    "bincount": lambda x, v, m, i: i[0].bincount(),
    "index_select": lambda x, v, m, i: x.index_select(0, i[0]),
    "bernoulli": lambda x, v, m, i: x.sigmoid().bernoulli(),
    "multinomial": lambda x, v, m, i: x.sigmoid().multinomial(1),
    "to": lambda x, v, m, i: x.to(torch.float64),
    "type": lambda x, v, m, i: x.type(torch.float64),
    "view": lambda x, v, m, i: x.view(6),
    "reshape": lambda x, v, m, i: x.reshape(-1),
    "expand": lambda x, v, m, i: x.expand(2, 2, 3),
    "broadcast_to": lambda x, v, m, i: x.broadcast_to((2, 2, 3)),
    "permute": lambda x, v, m, i: x.permute(1, 0),
    "transpose": lambda x, v, m, i: x.transpose(0, 1),
    "swapaxes": lambda x, v, m, i: x.swapaxes(0, 1),
    "movedim": lambda x, v, m, i: x.movedim(0, 1),
    "unsqueeze": lambda x, v, m, i: x.unsqueeze(0),
    "unflatten": lambda x, v, m, i: x.unflatten(1, (3, 1)),
    "narrow": lambda x, v, m, i: x.narrow(0, 0, 1),
    "select": lambda x, v, m, i: x.select(0, 0),
    "split": lambda x, v, m, i: x.split(1),
    "chunk": lambda x, v, m, i: x.chunk(2),
    "repeat": lambda x, v, m, i: x.repeat(2, 1),
    "repeat_interleave": lambda x, v, m, i: x.repeat_interleave(2),
    "roll": lambda x, v, m, i: x.roll(1),
    "flip": lambda x, v, m, i: x.flip(0),
    "new_empty": lambda x, v, m, i: x.new_empty(2),
    "new_zeros": lambda x, v, m, i: x.new_zeros(2),
    "new_ones": lambda x, v, m, i: x.new_ones(2),
    "new_full": lambda x, v, m, i: x.new_full((2,), 1),
    "softmax": lambda x, v, m, i: x.softmax(0),
    "log_softmax": lambda x, v, m, i: x.log_softmax(0),
    "logsumexp": lambda x, v, m, i: x.logsumexp(0),
    "cumsum": lambda x, v, m, i: x.cumsum(0),
    "topk": lambda x, v, m, i: x.topk(1),
    "requires_grad_": lambda x, v, m, i: x.requires_grad_(False),
    "__deepcopy__": lambda x, v, m, i: x.__deepcopy__({}),
}
NOT_CALLED: Final = {
    "pin_memory": "raises for a tensor on a device",
    "__reduce_ex__": "raises",
    "__init__": "",
    "__hash__": "object's own",
}


def _members() -> list[str]:
    own = [name for kind in Tensor.__mro__[:-1] for name in vars(kind)]
    skipped = {"__module__", "__doc__", "__slots__", "__dict__", "__weakref__", "__annotations__"}
    attributes = {"__array_priority__", "memory", "window", "device", "grad", "requires_grad"}
    return sorted(set(own) - skipped - attributes - {"is_leaf", "_tensor_class"} - set(NOT_CALLED))


@contextmanager
def _spied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Notes each access to bytes that no effect makes."""
    outside: list[str] = []
    depth = 0
    slot: Any = vars(Buffer)["data"]
    apply = DataExecutor.apply

    def get(buffer: Buffer) -> Any:
        if not depth:
            outside.append(f"read of {buffer.allocation.label}")
        return slot.__get__(buffer)

    def within(self: DataExecutor, effect: Any) -> None:
        nonlocal depth
        depth += 1
        try:
            apply(self, effect)
        finally:
            depth -= 1

    with monkeypatch.context() as patch:
        patch.setattr(Buffer, "data", property(get, slot.__set__))
        patch.setattr(DataExecutor, "apply", within)
        yield outside


@pytest.mark.parametrize("name", _members())
def test_no_method_reads_on_the_host_but_those_in_the_registry(
    name: str, topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RuntimeContext(engine=GraphEngine(topology("sip8"))) as ctx:
        x = torch.full((2, 3), 1.0, device="cuda")
        i, m = x.long() * 0 + 1, x > 5
        torch.cuda.Stream()  # from now on commands run when the loop does, not when issued
        x, i = x + 0, i + 0
        m, v = m & m, x[0, 0]
        pending = ctx.main.current_stream(0).tail
        assert pending is not None
        assert pending.time is None
        with _spied(monkeypatch) as outside:
            call = CALLS.get(name)
            if call is not None:
                call(x, v, m, i)
            else:
                member = getattr(x, name)
                if callable(member):
                    member()
        waited = pending.time is not None
        reads = _HOST_READ_BARRIERS.get(name) == "read"
        assert waited == reads, f"{name} {'waits' if waited else 'does not wait'}"
        assert outside == [], f"{name} touches bytes outside of an effect"
        torch.cuda.synchronize()


def test_the_spy_sees_a_peek(ctx: RuntimeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, device="cuda")
    with _spied(monkeypatch) as outside:
        _ = x + 1
        assert outside == []
        x.window.read().sum()
    assert outside == ["read of tensor [2] torch.float32"]


def test_the_registry_names_members_alone() -> None:
    for name in _HOST_READ_BARRIERS:
        assert inspect.getattr_static(Tensor, name) is not None


def test_a_mask_or_a_value_on_the_device_in_a_key_is_read(ctx: RuntimeContext) -> None:
    x = torch.arange(3.0, device="cuda")
    before = ctx.main.host.waited
    _ = x[x > 1]
    assert ctx.main.host.waited > before


def test_values(device: str) -> None:
    x = torch.tensor([[1.5, -2.0]], device=device)
    one = x[0, 0]
    assert x.tolist() == [[1.5, -2.0]]
    assert (one.item(), float(one), int(one), bool(one)) == (1.5, 1.5, 1, True)
    assert [10, 20][torch.tensor(1, device=device)] == 20
    assert (1.5 in x, 3 in x, one in x) == (True, False, True)
    assert np.asarray(x).dtype == np.float32
    assert np.asarray(x, np.float64).dtype == np.float64
    assert np.array(x, copy=True).tolist() == x.tolist()
    assert x.bfloat16().tolist() == x.tolist()
    assert type(x.bfloat16()[0, 0].item()) is float
    assert type((x > 0)[0, 0].item()) is bool
    assert type(x.long()[0, 0].item()) is int
    assert torch.equal(x, x.clone())
    assert not torch.equal(x, x + 1)
    assert not torch.equal(x, x[0])
    assert torch.allclose(x, x + 1e-7)
    assert not torch.allclose(x, x + 1)
    assert torch.nonzero(x > 0).tolist() == [[0, 0]]
    assert [part.tolist() for part in torch.nonzero(x, as_tuple=True)] == [[0, 0], [0, 1]]
    assert torch.nonzero(one).shape == (1, 0)
    values, inverse, counts = torch.unique(
        torch.tensor([3, 1, 3], device=device), return_inverse=True, return_counts=True
    )
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([1, 3], [1, 0, 1], [1, 2])
    assert isinstance(x, torch.Tensor)
    assert len({x, x, one}) == 2


def test_an_array_of_a_host_tensor_shares_memory_and_one_of_a_device_does_not(
    ctx: RuntimeContext,
) -> None:
    host, device = torch.zeros(2), torch.zeros(2, device="cuda")
    host.numpy()[0] = 1
    device.numpy()[0] = 1
    assert (host.tolist(), device.tolist()) == ([1, 0], [0, 0])
    with pytest.raises(ValueError, match="cannot share the memory"):
        np.array(host, dtype=np.int8, copy=False)


@pytest.mark.parametrize(
    ("read", "kind", "message"),
    [
        (lambda x: x.item(), RuntimeError, "a Tensor with 2 elements cannot be converted to Scal"),
        (lambda x: x[:0].item(), RuntimeError, "a Tensor with 0 elements cannot be converted to"),
        (bool, RuntimeError, "Boolean value of Tensor with more than one value is ambiguous"),
        (lambda x: bool(x[:0]), RuntimeError, "Boolean value of Tensor with no values is ambig"),
        (float, ValueError, "only one element tensors can be converted to Python scalars"),
        (int, ValueError, "only one element tensors can be converted to Python scalars"),
        (lambda x: [1][x[0]], TypeError, "only integer tensors of a single element"),
        (lambda x: torch.allclose(x, x.long()), RuntimeError, "torch.float32 did not match torch"),
    ],
)
def test_mistakes(
    device: str, read: Callable[[Any], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        read(torch.ones(2, device=device))
    assert "test_host_reads.py" in str(caught.value)


TEXTS: Final = {
    "tensor(2.5000)": lambda: torch.tensor(2.5),
    "tensor(3)": lambda: torch.tensor(3),
    "tensor([])": lambda: torch.zeros(0),
    "tensor([], size=(2, 0))": lambda: torch.zeros(2, 0),
    "tensor([], dtype=torch.int64)": lambda: torch.zeros(0, dtype=torch.int64),
    "tensor([0., 1., 2.])": lambda: torch.arange(3.0),
    "tensor([  1, -20, 300])": lambda: torch.tensor([1, -20, 300]),
    "tensor([ True, False])": lambda: torch.tensor([True, False]),
    "tensor([1.5000,    nan,    inf])": lambda: torch.tensor([1.5, math.nan, math.inf]),
    "tensor([1.0000e-08, 1.0000e+00])": lambda: torch.tensor([1e-8, 1.0]),
    "tensor([1000000., 1000000.])": lambda: torch.ones(2) * 1e6,
    "tensor([0.1235], dtype=torch.float64)": lambda: torch.tensor([0.123456]).double(),
    "tensor([0.1001, 2.5000], dtype=torch.bfloat16)": lambda: torch.tensor([0.1, 2.5]).bfloat16(),
    "tensor([[0, 1],\n        [2, 3]])": lambda: torch.arange(4).view(2, 2),
    "tensor([1], device='cuda:3')": lambda: torch.tensor([1], device="cuda:3"),
    "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])": lambda: torch.arange(2000),
    "tensor([ 0., inf, -1.])": lambda: torch.tensor([0.0, math.inf, -1.0]),
    "tensor([[   0,    1],\n        [   2,    3],\n        [   4,    5],\n        ...,\n"
    "        [1194, 1195],\n        [1196, 1197],\n        [1198, 1199]])": lambda: torch.arange(
        1200
    ).view(600, 2),
    "tensor([[[0.0000, 0.1250],\n         [0.2500, 0.3750]],\n\n"
    "        [[0.5000, 0.6250],\n         [0.7500, 0.8750]]])": lambda: (
        torch.arange(8).view(2, 2, 2) / 8
    ),
    "tensor([0.0000, 0.1250, 0.2500, 0.3750, 0.5000, 0.6250, 0.7500, 0.8750, 1.0000,\n"
    "        1.1250, 1.2500, 1.3750, 1.5000, 1.6250, 1.7500, 1.8750, 2.0000, 2.1250],\n"
    "       dtype=torch.float64)": lambda: torch.arange(18).double() / 8,
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_pytorchs(ctx: RuntimeContext, text: str) -> None:
    assert repr(TEXTS[text]()) == str(TEXTS[text]()) == text


def test_formatting(ctx: RuntimeContext) -> None:
    assert f"{torch.tensor(2.5):.2f} {torch.tensor(2.5)} {torch.ones(1)}" == "2.50 2.5 tensor([1.])"


@pytest.mark.parametrize(
    "name", sorted(name for name, kind in _HOST_READ_BARRIERS.items() if kind == "read")
)
def test_reads_need_data_and_written_memory(
    name: str, ctx_without_data: RuntimeContext, topology: Any
) -> None:
    def read(tensor: torch.Tensor, index: torch.Tensor) -> Any:
        call = CALLS.get(name)
        if call is None:
            return getattr(tensor, name)()
        return call(tensor, tensor[0, 0], tensor > 0, index)

    if name != "cpu":
        with pytest.raises(NoDataError):
            read(torch.zeros(2, 3, device="cuda"), torch.zeros(2, 3, device="cuda").long())
    with RuntimeContext(engine=GraphEngine(topology("sip8"))):
        unwritten = torch.empty(2, 3, dtype=torch.int64, device="cuda")
        with pytest.raises(UninitialisedReadError):
            read(torch.empty(2, 3, device="cuda"), unwritten)


def test_after_a_fault_reads_say_so(ctx: RuntimeContext) -> None:
    x = torch.empty(2, device="cuda") + 1
    with pytest.raises(UninitialisedReadError):
        x.tolist()
    with pytest.raises(Exception, match="on which a command failed earlier"):
        x.tolist()
