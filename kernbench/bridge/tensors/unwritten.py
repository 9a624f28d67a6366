"""Memory that nothing has written (M5): which storages have some, and what may read it.

Only what the program itself has made without values is watched, with `torch.empty` and the like:
C++ code also fills its tensors where no mode sees it. Storages that are wholly written, nearly all
of them, cost nothing: `Held.direct` sends operations on the others the long way.

Real programs also use memory that is written in part, such as caches with a mask and rows that pad
a batch. So to move elements is no mistake, their marks move with them; and an operation that may
leave elements out, as a product with a mask behind it does, is reported only if nothing of its
operand was written.
"""

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
import torch

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.tensors.operands import is_sparse, tensors_in
from kernbench.bridge.tensors.storages import ADDRESS, DTYPES, STORAGES, Held, hold
from kernbench.errors import CallSite, is_ours, site_fact
from kernbench.kernels.names import kernel_name
from kernbench.memory import Array, Buffer, UninitialisedReadError, View, never_written
from kernbench.process.act import HostWrite
from kernbench.tensors.tensor import Tensor

Reading = Literal["all", "some", "moves", "onto", "nothing"]
"""What an operation does with the elements of operands that it does not write: it computes with all
of them; it may leave some out; it moves them, to a new tensor or onto its first operand; it only
asks for their shape."""

_MOST_MARKED: Final = 1 << 24
"""Bytes of the largest storage of which it is known which bytes are written; to write a part of a
larger one counts as to write it all."""

_FILLS: Final = frozenset(
    (
        *("fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"),
        *("cauchy_", "log_normal_", "geometric_", "copy_", "_foreach_copy_", "_foreach_zero_"),
        *("_copy_from", "_copy_from_and_resize", "_philox_normal_", "_philox_uniform_"),
    )
)
"""Operations in place that do not read what they write."""

_PUTS: Final = frozenset(
    (
        *("masked_fill_", "masked_scatter_", "index_fill_", "index_copy_", "index_put_", "put_"),
        *("_index_put_impl_", "scatter_", "fill_diagonal_"),
    )
)
"""Operations in place that write the elements that values choose; that counts as all of them."""

_ADDS: Final = frozenset(
    ("index_add_", "scatter_add_", "scatter_reduce_", "index_reduce_", "embedding_renorm_")
)
"""Such operations that also read these elements."""

_SOME: Final = frozenset(
    (
        *("mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "_scaled_mm", "linear"),
        *("index", "_unsafe_index", "index_select", "gather", "take", "take_along_dim"),
        *("embedding", "_embedding_bag", "masked_select", "where", "masked_fill", "masked_scatter"),
        *("index_put", "_unsafe_index_put", "scatter", "slice_scatter", "select_scatter", "copy"),
        *("index_fill", "index_copy"),
    )
)
_MOVES: Final = frozenset(
    (
        *("clone", "_to_copy", "cat", "stack", "repeat", "constant_pad_nd", "flip", "roll"),
        *("expand_copy", "permute_copy", "view_copy", "split_copy", "split_with_sizes_copy"),
        *("slice_copy", "select_copy", "transpose_copy", "t_copy", "unbind_copy"),
    )
)
_ONTO: Final = frozenset(("copy_", "_foreach_copy_"))
_SCALED: Final = frozenset(("addmm", "addmv", "addr", "baddbmm", "addbmm"))
"""Products that do not read their first operand with `beta=0`."""

_COPIES: Final = frozenset(("aten::clone", "aten::_to_copy"))

_FROM_SYSTEM: Final = 32 << 20
"""Bytes from which on the C library takes memory from the system, which gives zeros."""


class Blank:
    """A storage of which not all is written.

    Args:
        site: Where the program made it.
        held: The storage's memory.
        of: The tensor for which it was made.

    Attributes:
        site: As above.
        label: Names the tensor in reports.
        marks: Says which bytes were never written; None: all of them.
        writer: What has written a part of it last; None: nothing has.
    """

    __slots__ = ("_held", "label", "marks", "site", "writer")

    def __init__(self, site: CallSite | None, held: Held, of: torch.Tensor) -> None:
        self.site: Final = site
        self.label: Final = described(of)
        self.marks: Buffer | None = None
        self.writer: HostWrite | None = None
        self._held: Final = held

    def marked(self) -> Buffer:
        """Returns what says which bytes were never written; makes it if all were not."""
        if self.marks is None:
            self.marks = Buffer(self._held.buffer.allocation)
            self.marks.unwritten = np.ones(self._held.storage.nbytes, np.bool_)
        return self.marks

    def view(self, tensor: torch.Tensor) -> View:
        """Returns a tensor on this storage as a view that knows which elements are written."""
        marks = self.marked()
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return View(marks, DTYPES[tensor.dtype], shape, strides, tensor.storage_offset())

    def gaps(self, tensor: torch.Tensor) -> Array | None:
        """Returns True for each element of a tensor that was never written; None if all were."""
        if self.marks is None:
            return np.ones(tuple(tensor.shape), np.bool_)
        return self.view(tensor).gaps()


class Operation:
    """What an operation does with memory that nothing has written.

    Attributes:
        reads: What it does with operands that it does not write.
        updates: What it does with those that it writes in place: `all` if it reads them too.
    """

    __slots__ = ("_scales", "func", "name", "outs", "reads", "updates")

    def __init__(self, func: Any) -> None:
        self.func: Final = func
        name: str = func._overloadpacket.__name__
        self.name: Final = kernel_name(name, func.namespace)
        arguments = func._schema.arguments
        self.outs: Final = frozenset(one.name for one in arguments if getattr(one, "is_out", False))
        self._scales: Final = name.removesuffix("_") in _SCALED
        self.reads: Final[Reading] = self._reading(name)
        fills = name in _FILLS or name in _PUTS
        self.updates: Final[Reading] = "nothing" if fills else "some" if name in _ADDS else "all"

    def _reading(self, name: str) -> Reading:
        if name.endswith("_like") or name.startswith("new_"):
            return "nothing"
        if name in _ONTO:
            return "onto"
        if name in _MOVES:
            return "some" if self.outs else "moves"
        return "some" if name in _SOME or name in _ADDS or "attention" in name else "all"

    def skips_first(self, args: Sequence[Any], kwargs: Any) -> bool:
        """Returns whether it does not read its first operand: `beta` is 0."""
        if not self._scales:
            return False
        for at, one in enumerate(self.func._schema.arguments):
            if one.name == "beta":
                given = args[at] if at < len(args) else (kwargs or {}).get("beta", 1)
                return bool(given == 0)
        return False


class Unwritten:
    """Storages of a rank of which not all is written.

    Args:
        found: Where they are kept: what ends takes itself out.
        changed: Called when the first one comes, or the last one goes.

    Attributes:
        found: As above.
    """

    def __init__(
        self, rank: Rank, found: dict[Held, Blank], changed: Callable[[Held | None], None]
    ) -> None:
        self.found: Final = found
        self._rank: Final = rank
        self._changed: Final = changed

    def note(self, out: Any, site: CallSite | None = None) -> None:
        """Notes a tensor that has just been made, and whose memory nothing has written.

        Args:
            site: Where the program made it; None: to be found.
        """
        if type(out) is not torch.Tensor or is_sparse(out) or not out.numel():
            return  # a DTensor is made of plain ones
        storage = out.untyped_storage()
        held = STORAGES.get(storage._cdata)
        if held is None:
            if out.device.type == "meta":
                return  # the program's own, which has no memory
            held = hold(self._rank, storage, on_device=False)
        self._add(held, Blank(site or self._rank.process.call_site(), held, out))

    def _add(self, held: Held, blank: Blank) -> None:
        self.found[held] = blank
        held.direct = False
        self._changed(held)

    def forget(self, held: Held) -> None:
        """Notes that all of a storage counts as written."""
        if self.found.pop(held, None) is not None:
            held.direct = held.on_device
            self._changed(None)

    def look(
        self,
        operation: Operation,
        operands: Sequence[tuple[torch.Tensor, str]],
        args: Sequence[Any],
        kwargs: Any,
    ) -> bool:
        """Looks at the operands of an operation that is about to run.

        Args:
            operands: Its tensors, each with `read`, `wrote` or `unknown`.

        Returns:
            Whether its results get elements that nothing has written, see `carry`.

        Raises:
            UninitialisedReadError: If it computes with elements that nothing has written (M5).
        """
        found, reading = self.found, operation.reads
        skipped = args[0] if operation.skips_first(args, kwargs) else None
        outs = [(kwargs or {}).get(name) for name in operation.outs]
        if (kwargs or {}).get("is_first_step"):
            outs.append(args[2])  # `_fused_sgd_` begins the momentum
        given = [id(one) for out in outs for one in tensors_in(out)]
        written, carried, moved = [], False, False
        for tensor, verb in operands:
            held = STORAGES.get(tensor.untyped_storage()._cdata)
            blank = None if held is None else found.get(held)
            if held is None or blank is None:
                continue
            if verb == "unknown":
                self.forget(held)
                continue
            how = reading
            if verb == "wrote":
                written.append((held, tensor))
                how = "nothing" if id(tensor) in given else operation.updates
            if how == "onto":
                moved = True
            elif how == "moves":
                carried = True
                if held.on_device and self._rank.making is False:
                    self._check(blank, tensor, operation.name, wholly=True)  # the host asks for it
            elif how != "nothing" and tensor is not skipped:
                self._check(blank, tensor, operation.name, wholly=how == "some")
        for held, tensor in written:
            self.wrote(held, tensor, operation.name)
        if moved:
            for to, source in zip(tensors_in(args[0]), tensors_in(args[1]), strict=False):
                self._move(to, source)
        return carried

    def _check(self, blank: Blank, tensor: torch.Tensor, call: str, *, wholly: bool) -> None:
        gaps = None if wholly and blank.marks is not None else self._unwritten_in(blank, tensor)
        if gaps is not None:
            raise self.refused(blank, gaps, f"{call} was issued at")

    @staticmethod
    def _unwritten_in(blank: Blank, tensor: torch.Tensor) -> Array | None:
        if not tensor.numel() or (tensor.dtype not in DTYPES and blank.marks is not None):
            return None
        return blank.gaps(tensor)

    def refused(self, blank: Blank, gaps: Array, where: str) -> UninitialisedReadError:
        """Returns the error about a read of what nothing has written, see `never_written`.

        Args:
            blank: The storage that is read.
            gaps: True for each element of the tensor that nothing has written.
            where: Begin of the line that tells where it is read.
        """
        error = never_written(gaps, blank.label, blank.site, blank.writer)
        error.tell_writer()
        error.add_fact(site_fact(self._rank.process.call_site(), where))
        return error

    def check_shown(self, tensor: torch.Tensor) -> None:
        """Checks that something has written all that the host is about to read.

        Raises:
            UninitialisedReadError: If nothing has (M5).
        """
        held = STORAGES.get(tensor.untyped_storage()._cdata)
        blank = None if held is None else self.found.get(held)
        gaps = None if blank is None else self._unwritten_in(blank, tensor)
        if blank is not None and gaps is not None:
            raise self.refused(blank, gaps, "read by the host at")

    def check_sent(self, block: Tensor, call: str) -> None:
        """Checks that something has written what a rank is about to give others, or a part of it.

        Args:
            call: The collective or message.

        Raises:
            UninitialisedReadError: If nothing has (M5).
        """
        held, window = block.memory, block.window
        blank = self.found.get(held) if isinstance(held, Held) else None
        if blank is None:
            return
        if blank.marks is not None:
            marked = View(blank.marks, window.dtype, window.shape, window.strides, window.offset)
            gaps = marked.gaps()
            if gaps is None or not gaps.all():
                return
        raise self.refused(blank, np.ones(window.shape, np.bool_), f"{call} was issued at")

    def wrote(self, held: Held, tensor: torch.Tensor, name: str) -> None:
        """Notes that something writes a tensor.

        Args:
            held: Its memory.
        """
        blank = self.found.get(held)
        if blank is None:
            return
        nbytes = held.storage.nbytes
        whole = tensor.numel() * tensor.itemsize == nbytes
        if whole or nbytes > _MOST_MARKED or tensor.dtype not in DTYPES:
            self.forget(held)
            return
        blank.view(tensor).note_written()
        blank.writer = HostWrite(name, self._rank.process.call_site())
        assert blank.marks is not None
        if blank.marks.unwritten is None or not blank.marks.unwritten.any():
            self.forget(held)

    def bytes_of(self, held: Held) -> Array | None:
        """Returns True for each byte of a storage that nothing has written; None if all are.

        Who writes to the storage by its address takes the bytes out.
        """
        blank = self.found.get(held)
        if blank is None or held.storage.nbytes > _MOST_MARKED:
            return None
        return blank.marked().unwritten

    def note_launch(self, held: Held, name: str, *, ran: bool) -> None:
        """Notes that a kernel has written to a storage.

        Args:
            ran: Whether it has taken what it has written out of `bytes_of`; else it counts as all.
        """
        blank = self.found.get(held)
        left = self.bytes_of(held) if ran else None
        if blank is None or left is None or not left.any():
            self.forget(held)
        else:
            blank.writer = HostWrite(name, self._rank.process.call_site())

    def _move(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Notes what a copy onto a tensor brings there."""
        gaps = self._gaps(source)
        if gaps is not None and gaps.any():
            held = STORAGES[source.untyped_storage()._cdata]
            self._leave(to, np.broadcast_to(gaps, tuple(to.shape)), self.found[held].site)

    def _gaps(self, tensor: torch.Tensor) -> Array | None:
        held = STORAGES.get(tensor.untyped_storage()._cdata)
        blank = None if held is None else self.found.get(held)
        if blank is None or tensor.dtype not in DTYPES or tensor.nbytes > _MOST_MARKED:
            return None
        return blank.gaps(tensor)

    def _leave(self, tensor: torch.Tensor, gaps: Array, site: CallSite | None) -> None:
        """Notes elements that have got what nothing has written."""
        storage = tensor.untyped_storage()
        held = STORAGES.get(storage._cdata)
        if held is None:
            held = hold(self._rank, storage, on_device=False)
        if held.storage.nbytes > _MOST_MARKED or tensor.dtype not in DTYPES:
            return
        blank = self.found.get(held)
        if blank is None:
            blank = Blank(site, held, tensor)
            whole = tensor.numel() * tensor.itemsize == held.storage.nbytes
            if not (whole and gaps.all()):
                view = blank.view(tensor)
                assert blank.marks is not None
                assert blank.marks.unwritten is not None
                blank.marks.unwritten[:] = False
                view.leave(gaps)
            self._add(held, blank)
        elif blank.marks is not None:
            blank.view(tensor).leave(gaps)

    def carry(self, operation: Operation, args: Sequence[Any], kwargs: Any, out: Any) -> None:
        """Notes elements of results that nothing has written: the operation has moved them there.

        Args:
            out: What it has made.
        """
        sites = [
            blank.site
            for one in tensors_in(args)
            if (held := STORAGES.get(one.untyped_storage()._cdata)) is not None
            and (blank := self.found.get(held)) is not None
        ]
        outs = list(tensors_in(out))
        if not sites or any(one.nbytes > _MOST_MARKED for one in outs):
            return
        if operation.name in _COPIES:
            found = [self._gaps(args[0])]
        else:
            if operation.name == "aten::constant_pad_nd":
                args = args[:2]  # what it pads with is written
            marked = operation.func(*_mapped(args, self._marks), **(kwargs or {}))
            found = [one.numpy() != 0 for one in tensors_in(marked)]
        for one, gaps in zip(outs, found, strict=True):
            if gaps is not None and gaps.any():
                self._leave(one, gaps, sites[0])

    def _marks(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of bytes: 1 where nothing has written an element."""
        gaps = self._gaps(tensor)
        shape = tuple(tensor.shape)
        marks = np.zeros(shape, np.uint8) if gaps is None else gaps.astype(np.uint8)
        return torch.from_numpy(marks)


def described(tensor: torch.Tensor) -> str:
    """Returns how reports name a tensor of a program: its shape and type."""
    return f"tensor {list(tensor.shape)} {tensor.dtype}"


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return [_mapped(one, change) for one in value]
    return value


def zeroed(out: Any) -> None:
    """Writes zeros to a tensor that was made without values: all ranks and runs then read the same.

    What a program reads without being told, such as elements behind a mask, must not differ.
    """
    if type(out) is not torch.Tensor or is_sparse(out):
        return
    storage = out.untyped_storage()
    nbytes = storage.nbytes()
    if 0 < nbytes < _FROM_SYSTEM and (address := ADDRESS(storage)):
        ctypes.memset(address, 0, nbytes)


def noting_blank(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that makes tensors without values, and notes that nothing wrote them.

    What C++ code makes is not noted: it also fills its tensors where no mode sees it. Nor is what
    PyTorch's own Python makes, but for parameters and buffers of modules, which programs may forget
    to write: its pipelines run stages on tensors without values to learn the shapes of results.

    Args:
        real: The function, as it is in ranks.
    """

    @functools.wraps(real)
    def make(*args: Any, **options: Any) -> Any:
        out = real(*args, **options)
        rank = HERE.rank
        if rank is not None and rank.making is None and options.get("out") is None:
            frame = sys._getframe(1)
            while frame.f_back and is_ours(frame):  # the bridge may have replaced it twice
                frame = frame.f_back
            caller: str = frame.f_globals.get("__name__", "")
            if not caller.startswith("torch.") or caller.startswith("torch.nn.modules."):
                rank.hazards.unwritten.note(out)
        return out

    return make
