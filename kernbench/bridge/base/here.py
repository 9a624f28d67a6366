"""The rank, or the main program, whose code runs in this thread."""

from typing import Any, Final, Protocol, cast

import torch
from torch._C._distributed_c10d import _register_process_group

from kernbench.following.tapes import Tape
from kernbench.isolation import here
from kernbench.process.process import Process


class Rank(here.Rank):
    """What the bridge knows of one process of a run: a rank, or main.

    Args:
        process: The simulated process.
        local: Index of its device among those of its node, as `cuda:LOCAL` names it.
        sip: The device of the machine that this is.
        local_devices: Number of devices of its node.
        data: Whether tensors have numbers.
        fake: Whether a value that is read is made up if there are none; otherwise that is an error.

    Attributes:
        device: `cuda:LOCAL`.
        current: Index of the current device, which `torch.cuda.set_device` sets.
        chosen: Whether the program has set it.
        physical: Device on which PyTorch keeps what is on the simulated device: `cpu`, or `meta`
            without numbers.
        making: Whether what is made now goes to the device, whatever the operands are; None: where
            the operands are.
        ambient: Whether what C++ code makes from nothing goes to the device, as in a backward pass.
        backward: Whether a backward pass runs.
        begun: Functional collectives for which nobody has waited yet, by the storage of the result,
            which the work keeps.
        capture: Notes what it captures into a CUDA graph; None if it captures none.
        casts: Parameters that autocast has cast, by `id`: a weak reference to each, and the cast.
        generator: What random numbers of the device are drawn from, once there were any.
        coalesced: What was called since a group of operations was begun; None: none was.
        numbers: Numbers of its device that are known, where reads are made up; None elsewhere.
        mode: The mode that sees the operations of the process.
        groups: What `distributed_c10d` keeps for a process; None before it is asked.
        hazards: Storages in use by collectives, and those that nothing has written.
        hooked: While a communication hook of DDP runs, works for whose future it has asked.
        hbm: Memory of its device.
        races: Watches what its streams do, once it has several; None before.
        spares: Memory of storages that are gone, by its bytes, for storages to come.
        tape: Notes what the rank does, for ranks that do the same; None if nobody asks.
        flight: Notes its collectives and messages for PyTorch's analyser; None if nobody asks.
        stashed: Memory that collectives keep for which nobody waits by a handle, each with the host
            time from which on the next collective lets it go.
    """

    __slots__ = (
        *("ambient", "backward", "begun", "capture", "casts", "chosen", "coalesced", "current"),
        *("data", "device", "fake", "flight", "generator", "groups", "hazards", "hbm", "hooked"),
        *("local", "local_devices", "making", "mode", "numbers", "outstanding", "physical"),
        *("races", "sip", "spares", "stashed", "tape"),
    )

    def __init__(
        self,
        process: Process,
        local: int,
        sip: int,
        local_devices: int,
        *,
        data: bool,
        fake: bool = False,
    ) -> None:
        super().__init__(process)
        self.local: Final = local
        self.sip: Final = sip
        self.local_devices: Final = local_devices
        self.data: Final = data
        self.fake: Final = fake
        self.device: Final = torch.device("cuda", local)
        self.physical: Final = torch.device("cpu" if data else "meta")
        self.current = 0
        self.chosen = False
        self.making: bool | None = None
        self.ambient = False
        self.backward = False
        self.begun: dict[int, Any] = {}
        self.capture: Any = None
        self.casts: dict[int, tuple[Any, torch.Tensor]] = {}
        self.coalesced: list[Any] | None = None
        self.mode: Any = None
        self.numbers: Any = None
        self.hazards: Any = None
        self.races: Any = None
        self.flight: Any = None
        self.hooked: list[Any] | None = None
        self.hbm: Final = process.engine.devices[sip].hbm
        self.generator: Any = None
        self.outstanding: list[Any] = []
        self.spares: dict[int, list[Any]] = {}
        self.stashed: list[tuple[int, list[Any]]] = []
        self.tape: Tape | None = None
        self.groups: Any = None

    def enter_thread(self) -> None:
        """Lets the rank's mode see what the calling thread does."""
        self.mode.__enter__()
        if self.groups is not None:  # C++ knows groups by the thread that made them
            for group, name in list(self.groups.pg_names.items()):
                _register_process_group(name, group)

    def leave_thread(self) -> None:
        """Undoes what `enter_thread` has done."""
        self.mode.__exit__(None, None, None)


class _Here(Protocol):
    rank: Rank | None


HERE: Final = cast(_Here, here.HERE)
"""Of the running thread: `rank`, which is None outside of simulated processes."""


def this_rank() -> Rank:
    """Returns the rank, or main, whose code runs here; see `isolation.here`."""
    return cast(Rank, here.this_rank())
