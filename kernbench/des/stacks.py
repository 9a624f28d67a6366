"""What all tasks do, as text: for the report of a process that hangs."""

import gc
import sys
from types import FrameType

from kernbench.des.core import EventLoop, Task
from kernbench.des.threads import is_outermost
from kernbench.errors import is_ours


def stacks() -> str:
    """Returns the stacks of all tasks that live, those of all loops; outermost calls first.

    Tasks that run come last, so that the end of the text is about them, after the hub, which waits
    for them. Of those that wait, calls inside kernbench are left out, unless there are no others.
    Another thread than that of the loop may call this, and so may the handler of a signal.
    """
    # Loops are not registered anywhere, as making one is frequent and asking for all is rare.
    # By their type: `isinstance` asks an object for `__class__`, which runs code of strangers.
    holders = gc.get_referrers(EventLoop)
    loops: list[EventLoop] = [each for each in holders if issubclass(type(each), EventLoop)]
    tasks = [(loop, task) for loop in loops for task in loop.tasks()]
    waiting = [_of_waiting(task) for loop, task in tasks if task is not loop.current]
    running = [_of_running(loop, task) for loop, task in tasks if task is loop.current]
    return "".join(f"{told}\n" for told in (*waiting, *running))


def _of_waiting(task: Task) -> str:
    what = f"waits for {task.waiting_for}" if task.begun else "has not begun"
    return _lines(f"{task.name} {what}", _of_users(task.frame))


def _of_running(loop: EventLoop, task: Task) -> str:
    hub = None if task._carrier is None else task._carrier.hub_frame
    frame = sys._current_frames().get(loop.thread or 0)
    frames = [f for f in _outermost_first(frame) if f.f_globals.get("__name__") != __name__]
    return "\n".join(
        [
            _lines(f"the hub waits for {task.name}", _of_users(hub)),
            _lines(f"{task.name} runs", frames),
        ]
    )


def _of_users(frame: FrameType | None) -> list[FrameType]:
    frames = _outermost_first(frame)
    return [frame for frame in frames if not is_ours(frame)] or frames


def _outermost_first(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None and not is_outermost(frame):
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _lines(title: str, frames: list[FrameType]) -> str:
    places = [f"  {f.f_code.co_filename}:{f.f_lineno} in {f.f_code.co_name}" for f in frames]
    return "\n".join([f"{title}:" if places else title, *places])
