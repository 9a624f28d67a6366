"""Tensors that backward computes anew: what nodes keep instead, and the run that fills it."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from kernbench.autograd.graph import saved_tensors_hooks
from kernbench.errors import CallSite, call_site, site_fact
from kernbench.process.process import current_process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.nodes import History, Saved, grad_state_of, history, recording, with_history
from kernbench.tensors.tensor import Tensor

SAME_COURSE: Final = "let the function take the same course both times"
"""What to try if the second run of a function is another than the first."""


class CheckpointError(TensorError):
    """A function computed other tensors for backward than it had in the forward pass."""


class _Stop(BaseException):
    """All tensors are computed; no error, so that no handler of the function catches it."""


class _Holder:
    """Stands for a tensor that a node would have kept.

    Attributes:
        values: The tensor by number of the backward pass that computed it; None once it was used.
    """

    __slots__ = ("__weakref__", "values")

    def __init__(self) -> None:
        self.values: dict[int, Tensor | None] = {}


_Form = tuple[list[int], str, str]
"""Shape, dtype and device of a tensor."""


def _form(tensor: Tensor) -> _Form:
    return list(tensor.window.shape), str(tensor.dtype), str(tensor.device)


class Frame:
    """One call of a function: what its nodes keep, and how it is run again.

    Args:
        run: Runs the function again, with the arguments.
        args: The arguments; tensors are kept as a node keeps them.
        early_stop: Whether to stop as soon as all tensors are computed.
        compares: Whether computed tensors must have the form of those of the forward pass.

    Attributes:
        label: What reports of a tensor that was written since call the keeper.
        site: Where the checkpoint was called.
        complete: Whether the forward pass has ended.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        args: Sequence[Any],
        *,
        early_stop: bool,
        compares: bool,
    ) -> None:
        self.label = "checkpoint"
        self.site: CallSite | None = current_process().call_site()
        self.complete = False
        self._run = run
        self._early_stop = early_stop
        self._compares = compares
        self._args: list[tuple[Saved, History] | Any] = [
            (Saved(each), history(each)) if isinstance(each, Tensor) else each for each in args
        ]
        self._tensors = [isinstance(each, Tensor) for each in args]
        self._holders: list[weakref.ref[_Holder]] = []
        self._forms: list[_Form] = []
        self._sites: list[CallSite | None] = []
        self._done: set[int] = set()
        self._more = False

    def pack(self, tensor: Tensor) -> _Holder:
        """Returns what a node of the forward pass keeps instead of a tensor."""
        holder = _Holder()
        self._holders.append(weakref.ref(holder))
        self._forms.append(_form(tensor))
        self._sites.append(call_site())
        return holder

    def unpack(self, holder: _Holder) -> Tensor:
        """Returns the tensor that a holder stands for, computed at most once in a backward pass.

        Raises:
            CheckpointError: If the function computed other tensors, or the tensor was used already.
        """
        state = grad_state_of(current_process())
        number = state.running
        if not number:  # someone looks at what a node has kept, without a pass
            state.passes += 1
            number = state.passes
        if number not in self._done:
            self._compute(number)
        value = holder.values.get(number)
        if value is None:
            raise CheckpointError(
                "torch.utils.checkpoint: Unpack is being triggered for a tensor that was already "
                "unpacked once.",
                [site_fact(call_site()), self._fact()],
                hint="read ctx.saved_tensors once in a backward",
            )
        holder.values[number] = None
        return value

    def _fact(self) -> str:
        return site_fact(self.site, "the checkpoint was called at")

    def _compute(self, number: int) -> None:
        """Runs the function again, for a backward pass."""
        args = [
            with_history(each[0].get(self), each[1]) if tensor else each
            for each, tensor in zip(self._args, self._tensors, strict=True)
        ]
        again = _Again(self, number)
        process = current_process()
        try:
            with saved_tensors_hooks(again.pack, _same), recording(process, True):
                self._run(*args)
        except _Stop as stop:
            if stop.args != (again,):
                raise
        self._done.add(number)
        if not self._more:
            self._check(again)

    def _check(self, again: "_Again") -> None:
        if len(again.sites) != len(self._holders):
            raise CheckpointError(
                "torch.utils.checkpoint: A different number of tensors was saved during the "
                "original forward and recomputation.",
                [
                    site_fact(call_site()),
                    self._fact(),
                    f"Number of tensors saved during forward: {len(self._holders)}",
                    f"Number of tensors saved during recomputation: {len(again.sites)}",
                ],
                hint=SAME_COURSE,
            )
        facts: list[str] = []
        for at, form in again.forms.items():
            if self._compares and form != self._forms[at]:
                facts += [
                    f"tensor at position {at}: {_shown(self._forms[at])} in the forward pass, "
                    f"{_shown(form)} in the recomputation",
                    site_fact(self._sites[at], "  saved at"),
                    site_fact(again.sites[at], "  the second time at"),
                ]
        if facts:
            raise CheckpointError(
                "torch.utils.checkpoint: Recomputed values for the following tensors have "
                "different metadata than during the forward pass.",
                [site_fact(call_site()), self._fact(), *facts],
                hint=SAME_COURSE,
            )

    def holder(self, again: "_Again", at: int) -> _Holder | None:
        """Returns the holder for a tensor that the function keeps the second time.

        Args:
            again: The second run.
            at: Number of the tensor in it, from 0.

        Returns:
            None if nobody needs the tensor.

        Raises:
            CheckpointError: If there was no such tensor in the forward pass.
        """
        if at < len(self._holders):
            return self._holders[at]()
        if self.complete:
            raise CheckpointError(
                "torch.utils.checkpoint: trying to save more tensors during recomputation than "
                "during the original forward pass.",
                [
                    self._fact(),
                    f"Number of tensors saved during forward: {len(self._holders)}",
                    site_fact(again.sites[at], "the next one would be saved at"),
                ],
                hint=SAME_COURSE,
            )
        self._more = True  # a backward pass inside of the function, which has not ended
        return None

    def is_last(self, count: int) -> bool:
        """Returns whether nothing is needed after so many tensors."""
        return self._early_stop and count == len(self._holders)


class _Again:
    """A second run of a frame's function.

    Attributes:
        sites: Where the function kept each tensor.
        forms: Forms of the tensors that are needed, by their number.
    """

    def __init__(self, frame: Frame, number: int) -> None:
        self._frame = frame
        self._number = number
        self.sites: list[CallSite | None] = []
        self.forms: dict[int, _Form] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        """Gives a tensor to the holder that waits for it.

        Raises:
            CheckpointError: If none ever did.
            _Stop: If it was the last one.
        """
        at = len(self.sites)
        self.sites.append(call_site())
        holder = self._frame.holder(self, at)
        if holder is not None:
            holder.values[self._number] = tensor
            self.forms[at] = _form(tensor)
        if self._frame.is_last(at + 1):
            raise _Stop(self)
        return tensor


def _shown(form: _Form) -> str:
    shape, dtype, device = form
    return f"{shape} {dtype} on {device}"


def _same(packed: Tensor) -> Tensor:
    return packed
