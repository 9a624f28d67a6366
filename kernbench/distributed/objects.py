"""`torch.distributed`: Python objects between ranks.

Objects are pickled, so ranks never share one. Time is that of PyTorch's steps: ranks exchange the
sizes, then the bytes, padded where blocks must be of one size, with copies to and from the device.
The pickles themselves travel beside the simulated bytes, so objects arrive with data off, too:
programs branch on them.
"""

import io
import pickle
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from kernbench.distributed.checks import CollectiveArgumentError, root_of
from kernbench.distributed.groups import (
    Group,
    backend_of,
    check_device_id,
    find_group,
    home_of,
    is_outside,
    libraries_of,
    meets_on_host,
)
from kernbench.distributed.issuing import issue, met
from kernbench.distributed.p2p import give, take
from kernbench.distributed.posting import Post
from kernbench.distributed.signatures import object_signature
from kernbench.errors import KernbenchError, OptionError, UnsupportedError, call_site, site_fact
from kernbench.memory import Array, DType, dtypes
from kernbench.operations.copies import array_to
from kernbench.process.called import called
from kernbench.process.process import Process, current_process
from kernbench.process.types import CPU, Device
from kernbench.ranks.meeting import Exchange
from kernbench.ranks.transfers import TransferMismatchError
from kernbench.tensors.errors import refuse
from kernbench.tensors.new import new_tensor
from kernbench.tensors.running import cuda_device, read_back
from kernbench.tensors.tensor import Tensor

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


class ObjectError(KernbenchError, pickle.PicklingError, AttributeError, TypeError):
    """An object that is to go to other ranks cannot be pickled.

    `pickle` raises an `AttributeError` for what is local, a `TypeError` for locks and files.
    """


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Replaces the objects of a list by copies of one rank's objects. The host waits.

    Args:
        object_list: List of the same length on all ranks.
        src: Global rank of the source, by default 0; or give `group_src`.
        group: Process group; None for all ranks.
        device: Device whose memory the bytes pass through: the calling rank's device or, on other
            backends than `nccl`, `cpu`. None: the host with `gloo`, otherwise the device.
        group_src: Rank of the source in the group.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2, C3, C7).
        KernbenchError: If the source or the group cannot be used (C7, C8, C18).
    """
    if is_outside(group, "broadcast_object_list"):
        return
    talk = _Talk("broadcast_object_list", group)
    talk.check_device(device)
    root = talk.root("src", src, group_src)
    pickles = _all_pickled(object_list, "object_list") if talk.place == root else None
    if pickles is None:
        sizes = talk.room(len(object_list), dtypes.int64)
    else:
        sizes = talk.uploaded([len(data) for data in pickles])
    meeting = talk.broadcast(sizes, root, mail=pickles)
    talk.read(sizes)
    mail = meeting.mail[talk.group.ranks[root]]
    whole = b"".join(mail)
    data = talk.room(len(whole), dtypes.uint8) if pickles is None else talk.uploaded(whole)
    talk.broadcast(data, root)
    if pickles is None:
        talk.read(data)
        object_list[:] = [pickle.loads(entry) for entry in mail]


def all_gather_object(object_list: list[Any], obj: Any, group: Group = None) -> None:
    """Gives every rank copies of the objects of all ranks. The host waits.

    Args:
        object_list: List that receives the objects, with an entry for each rank.
        obj: Object of the calling rank.
        group: Process group; None for all ranks.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2).
        KernbenchError: If the list or the group cannot be used (C8, C12, C18).
    """
    if is_outside(group, "all_gather_object"):
        return
    talk = _Talk("all_gather_object", group)
    talk.check_length(object_list, "object_list")
    mine = _pickled(obj, "obj")
    found, longest = talk.all_sizes(mine)
    data = talk.uploaded(mine.ljust(longest, b"\0"))
    target = talk.room(longest * talk.group.size(), dtypes.uint8)
    talk.all_gather(data, target)
    talk.read(target)
    object_list[:] = [pickle.loads(entry) for entry in found]


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
) -> None:
    """Gives one rank copies of the objects of all ranks. The host waits.

    Args:
        obj: Object of the calling rank.
        object_gather_list: On the destination, the list that receives the objects, with an entry
            for each rank; elsewhere None.
        dst: Global rank of the destination, by default 0; or give `group_dst`.
        group: Process group; None for all ranks.
        group_dst: Rank of the destination in the group.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2, C7).
        KernbenchError: If an argument cannot be used (C7, C8, C12, C18).
    """
    if is_outside(group, "gather_object"):
        return
    talk = _Talk("gather_object", group)
    root = talk.root("dst", dst, group_dst)
    talk.check_at_root(object_gather_list, "object_gather_list", root)
    mine = _pickled(obj, "obj")
    found, longest = talk.all_sizes(mine)
    data = talk.uploaded(mine.ljust(longest, b"\0"))
    if object_gather_list is None or talk.place != root:
        talk.rooted("gather", (longest,), dtypes.uint8, root, (data,), ())
        return
    target = talk.room(longest * talk.group.size(), dtypes.uint8)
    talk.rooted("gather", (longest,), dtypes.uint8, root, (data,), (target,))
    talk.read(target)
    object_gather_list[:] = [pickle.loads(entry) for entry in found]


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
) -> None:
    """Gives every rank a copy of one of the objects of one rank. The host waits.

    Args:
        scatter_object_output_list: Its first entry becomes the object.
        scatter_object_input_list: On the source, one object for each rank; not looked at elsewhere.
        src: Global rank of the source, by default 0; or give `group_src`.
        group: Process group; None for all ranks.
        group_src: Rank of the source in the group.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2, C7).
        KernbenchError: If an argument cannot be used (C7, C8, C12, C18).
    """
    if is_outside(group, "scatter_object_list"):
        return
    talk = _Talk("scatter_object_list", group)
    root = talk.root("src", src, group_src)
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise OptionError(
            "Expected argument scatter_object_output_list to be a list of size at least 1.",
            [site_fact(call_site())],
        )
    pickles = None
    if talk.place == root:
        talk.check_length(scatter_object_input_list, "scatter_object_input_list")
        pickles = _all_pickled(scatter_object_input_list or (), "scatter_object_input_list")
    if pickles is None:
        size = talk.room(1, dtypes.int64)
    else:
        size = talk.uploaded([max(map(len, pickles))])
    meeting = talk.broadcast(size, root, mail=pickles)
    talk.read(size)
    mail = meeting.mail[talk.group.ranks[root]]
    longest = max(map(len, mail))
    for values, length, dtype in (
        (b"".join(entry.ljust(longest, b"\0") for entry in mail), longest, dtypes.uint8),
        ([len(entry) for entry in mail], 1, dtypes.int64),
    ):
        target = talk.room(length, dtype)
        given = () if pickles is None else (talk.uploaded(values),)
        talk.rooted("scatter", (length,), dtype, root, given, (target,))
        talk.read(target)
    scatter_object_output_list[0] = pickle.loads(mail[talk.place])


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Sends copies of the objects of a list: their sizes, then their bytes. See `send`.

    Args:
        object_list: List of the same length as the receiver's.
        dst: Global rank of the receiver; or give `group_dst`.
        group: Process group; None for all ranks.
        device: See `broadcast_object_list`.
        group_dst: Rank of the receiver in the group.
        use_batch: Must be False.

    Raises:
        PeerError: If the receiver does not exist (P9) or is the caller (P6).
        TransferMismatchError: If the receiver expects a different number of objects (P7).
        KernbenchError: If the group cannot be used.
    """
    name = "send_object_list"
    if is_outside(group, name):
        return
    talk = _Talk(name, group)
    talk.check_device(device)
    refuse(name, use_batch=use_batch or None)
    pickles = _all_pickled(object_list, "object_list")
    for values in ([len(data) for data in pickles], b"".join(pickles)):
        post = Post(name, "send", talk.uploaded(values), group, 0)
        give(post, post.peer(dst, group_dst, "dst"), pickles)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Replaces the objects of a list by copies of another rank's objects. The host waits.

    Args:
        object_list: List of the same length as the sender's.
        src: Global rank of the sender; None (and no `group_src`) for any rank of the group.
        group: Process group; None for all ranks.
        device: See `broadcast_object_list`.
        group_src: Rank of the sender in the group.
        use_batch: Must be False.

    Returns:
        The sender's global rank.

    Raises:
        PeerError: If the sender does not exist (P9) or is the caller (P6).
        TransferMismatchError: If the sender sends a different number of objects, or a tensor (P7).
        KernbenchError: If the group cannot be used.
    """
    name = "recv_object_list"
    if is_outside(group, name):
        return -1
    talk = _Talk(name, group)
    talk.check_device(device)
    refuse(name, use_batch=use_batch or None)
    sizes = talk.room(len(object_list), dtypes.int64)
    post = Post(name, "recv", sizes, group, 0)
    sender, transfer = take(post, post.source(src, group_src))
    talk.read(sizes)
    mail = transfer.mail.get(sender)
    if mail is None:
        raise TransferMismatchError(
            f"rank {sender} sends a tensor to rank {talk.process.rank}, which receives objects",
            [
                call.fact(f"rank {rank}, {transfer.numbered(call)}")
                for rank, call in sorted(transfer.calls.items())
            ],
            hint="recv_object_list receives what send_object_list sends",
            code="P7",
        )
    data = talk.room(sum(map(len, mail)), dtypes.uint8)
    take(Post(name, "recv", data, group, 0), sender)
    talk.read(data)
    object_list[:] = [pickle.loads(entry) for entry in mail]
    return sender


class _Talk:
    """One call that moves objects, with the collectives on bytes of which it is made."""

    def __init__(self, name: str, group: Group) -> None:
        self.process: Final[Process] = current_process()
        self.group: Final = find_group(self.process, group, name)
        self.place: Final = self.group.place(self.process.rank)
        self._name = name
        hosted = meets_on_host(self.process, self.group)
        self._device = CPU if hosted else cuda_device(home_of(self.process))
        self._root_text = ""

    def root(self, label: str, given: int | None, local: int | None) -> int:
        """Returns the rank in the group of the source or destination.

        Args:
            label: `src` or `dst`.
            given: The user's `src` or `dst`: a global rank.
            local: The user's `group_src` or `group_dst`: a rank in the group.
        """
        place, text = root_of(self.process, self.group, self._name, label, given, local, default=0)
        self._root_text = text
        return place

    def check_device(self, device: Any) -> None:
        """Checks a `device` argument, and keeps the bytes of this call there."""
        libraries = libraries_of(backend_of(self.process, self.group))
        if device is not None and Device(device) == CPU and "cpu" in libraries:
            self._device = CPU
            return
        check_device_id(self._name, self.process, device)

    def check_length(self, values: object, label: str) -> None:
        """Checks that an argument is a list with an entry for each rank (C12)."""
        ranks = self.group.size()
        got = f"{len(values)} entries" if isinstance(values, list) else type(values).__name__
        if not isinstance(values, list) or len(values) != ranks:
            raise CollectiveArgumentError(
                f"rank {self.process.rank} called {self._name} with {got} as {label}",
                [
                    called(self.process, self._name, self.group),
                    f"needed a list of {ranks}, one for each rank of group {self.group.name}",
                ],
                hint="make it [None] * dist.get_world_size(group)",
                code="C12",
            )

    def check_at_root(self, values: object, label: str, root: int) -> None:
        """Checks that a list is given on the root, and on no other rank (C12)."""
        if self.place == root:
            self.check_length(values, label)
        elif values:
            raise CollectiveArgumentError(
                f"rank {self.process.rank} called {self._name} with {label}, but "
                f"{self._root_text} has it",
                [called(self.process, self._name, self.group)],
                hint=f"give {label} on that rank only",
                code="C12",
            )

    def uploaded(self, values: bytes | Sequence[int]) -> Tensor:
        """Returns a tensor of bytes, or of int64 sizes; the host waits for a copy to a device."""
        if isinstance(values, bytes):
            array: Array = np.frombuffer(values, np.uint8).copy()
        else:
            array = np.array(values, np.int64)
        return array_to(self.process, array, self._device)

    def room(self, count: int, dtype: DType) -> Tensor:
        """Returns a tensor of one dimension without values, for a collective to write."""
        return new_tensor(self.process, (count,), dtype, self._device)

    def read(self, tensor: Tensor) -> None:
        """Copies a tensor from a device to the host, as a program must; the host waits."""
        if tensor.is_cuda:
            read_back(self.process, tensor, lambda _: None)

    def all_sizes(self, mine: bytes) -> tuple[list[bytes], int]:
        """Exchanges the lengths of all pickles; returns the pickles, and the largest length."""
        size = self.uploaded([len(mine)])
        sizes = self.room(self.group.size(), dtypes.int64)
        mail = self.all_gather(size, sizes, mail=mine).mail
        self.read(sizes)
        found = [mail[rank] for rank in self.group.ranks]
        return found, max(map(len, found))

    def all_gather(self, source: Tensor, target: Tensor, mail: Any = None) -> Exchange:
        """Issues an `all_gather` of bytes or sizes."""
        shapes = (source.window.shape,) * self.group.size()
        what = object_signature(self._name, "all_gather", source.dtype, shapes)
        return met(issue(self.process, self.group, what, (source,), (target,), mail=mail))[1]

    def broadcast(self, tensor: Tensor, root: int, mail: Any = None) -> Exchange:
        """Issues a `broadcast` of bytes or sizes."""
        shapes = (tensor.window.shape,)
        text = self._root_text
        what = object_signature(self._name, "broadcast", tensor.dtype, shapes, root, text)
        both = (tensor,)
        sources = both if self.place == root else ()
        return met(issue(self.process, self.group, what, sources, both, mail=mail))[1]

    def rooted(
        self,
        operation: str,
        shape: tuple[int, ...],
        dtype: DType,
        root: int,
        sources: Sequence[Tensor],
        targets: Sequence[Tensor],
    ) -> None:
        """Issues a `gather` or a `scatter` of bytes."""
        shapes, text = (shape,) * self.group.size(), self._root_text
        what = object_signature(self._name, operation, dtype, shapes, root, text)
        issue(self.process, self.group, what, sources, targets)


class _Pickler(pickle.Pickler):
    """Refuses tensors, whose memory belongs to their rank."""

    def reducer_override(self, value: object) -> Any:
        """See `pickle.Pickler`."""
        if isinstance(value, Tensor):
            raise UnsupportedError(
                "a tensor inside an object that goes to other ranks is not simulated",
                [site_fact(call_site())],
                hint="send its values with .tolist(), or the tensor with a collective for tensors",
            )
        return NotImplemented


def _pickled(value: object, what: str) -> bytes:
    """Returns the pickle of an object.

    Args:
        value: The object.
        what: Name of the argument, for errors.

    Raises:
        ObjectError: If the object cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ObjectError(
            f"{current_process().name} cannot pickle {what}, which goes to other ranks: {error}",
            [site_fact(call_site()), f"{what} is of type {type(value).__name__}"],
            hint="functions and classes have to stand at the top of a module: no lambda, nothing "
            "local",
        ) from error
    return buffer.getvalue()


def _all_pickled(values: Sequence[object], what: str) -> list[bytes]:
    return [_pickled(value, f"{what}[{index}]") for index, value in enumerate(values)]
