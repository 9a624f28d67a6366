"""`torch.distributed`: barriers, in which ranks wait for each other."""

from collections.abc import Sequence
from typing import Final

from kernbench.caches import cached
from kernbench.distributed.groups import (
    Group,
    get_backend,
    home_of,
    is_outside,
    meets_on_host,
    members_of,
)
from kernbench.distributed.issuing import handle, issue
from kernbench.distributed.reduce_ops import ReduceOp
from kernbench.distributed.signatures import Signature, renamed, signature
from kernbench.distributed.works import Work
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.memory import dtypes
from kernbench.process.process import RankLocal, current_process
from kernbench.process.types import CPU, Device
from kernbench.ranks.groups import ProcessGroup
from kernbench.tensors.memory import Memory
from kernbench.tensors.new import new_tensor, wrap
from kernbench.tensors.running import cuda_device
from kernbench.tensors.tensor import Tensor

__all__ = ["barrier", "monitored_barrier"]


def barrier(
    group: Group = None,
    async_op: bool = False,
    device_ids: Sequence[int] | None = None,
    timeout: object = None,
) -> Work | None:
    """Waits, on the host, until every rank has called: an all-reduce of one element, as in NCCL.

    With the backend `gloo` the all-reduce runs between the hosts.

    Args:
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work`, whose `wait` makes the host wait.
        device_ids: None, or the calling rank's device alone.
        timeout: Ignored by design: a hang is found when it happens, not after a time.

    Raises:
        CollectiveMismatchError: If another rank calls a different collective (C2).
        KernbenchError: If the group cannot be used (C8, C18).
    """
    del timeout
    return _barrier("barrier", group, async_op, device_ids)


def monitored_barrier(
    group: Group = None, timeout: object = None, wait_all_ranks: bool = False
) -> None:
    """Waits, on the host, until every rank has called; only for the backend `gloo`, as in PyTorch.

    Args:
        group: Process group; None for all ranks.
        timeout: Ignored by design: a rank that does not call is found when it returns.
        wait_all_ranks: Makes no difference: the report names all ranks that do not call.

    Raises:
        OptionError: On another backend.
        CollectiveMismatchError: If a rank does not call (C1), or calls a different collective (C2).
    """
    del timeout, wait_all_ranks
    if is_outside(group, "monitored_barrier"):
        return
    if get_backend(group) != "gloo":
        raise OptionError(
            "monitored_barrier is only implemented for GLOO backend.",
            [site_fact(call_site()), f"the backend is {get_backend(group)}"],
            hint="call barrier(): a rank that does not come is named in its report, too",
        )
    _barrier("monitored_barrier", group, False, None)


_TOKENS: Final[RankLocal[dict[Device, Tensor]]] = RankLocal("tokens of barriers", lambda _: {})
"""The tensor of one element that a rank's barriers reduce, by device."""


def meet(name: str, group: ProcessGroup) -> None:
    """Waits, on the host, until every rank of a group has called; reports call it `name`."""
    _barrier(name, group, False, None)


def _barrier(
    name: str, group: Group, async_op: bool, device_ids: Sequence[int] | None
) -> Work | None:
    process = current_process()
    members = members_of(process, group, name)
    if members is None:
        return None
    sip = home_of(process)
    if device_ids is not None and list(device_ids) != [sip]:
        raise OptionError(
            f"{name}(device_ids={list(device_ids)}) on rank {process.rank}",
            [site_fact(call_site()), f"expected None or [{sip}], the device of the rank"],
        )
    device = CPU if meets_on_host(process, members) else cuda_device(sip)
    tokens = _TOKENS.of(process)
    token = tokens.get(device)
    if token is None:
        token = tokens[device] = new_tensor(process, (1,), dtypes.int32, device)
        if process.engine.enable_data:
            token.window.buffer.poison(dtypes.int32)
            token.window.write()[...] = 0
    # Barriers of several streams may share the tensor: each starts with a fresh record of accesses.
    both = (wrap(Memory(token.memory.storage, process), token.window, token.device),)
    command, _ = issue(process, members, _signature(name), both, both, async_op=async_op)
    if async_op:
        return handle(process, command, (), blocks_host=True)
    process.wait_stream(command.stream)
    return None


@cached("distributed.barriers")
def _signature(name: str) -> Signature:
    what = signature("all_reduce", "all_reduce", dtypes.int32, ((1,),), ReduceOp.SUM)
    return renamed(what, name)
