"""Lets go of what a rank has left behind when its spawn is over.

What is under way refers to one another: a command to its event, and the event to the command. Of
what completes, these ties are cut at completion. Of what never does, they are cut here. So its
tensors are freed at once, and do not wait for the garbage collector.
"""

from kernbench.process.process import Process
from kernbench.ranks.meeting import Exchange
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import OVER


def let_go(process: Process) -> None:
    """Breaks reference cycles of a finished rank, so that its memory is freed at once.

    Args:
        process: The rank. All ranks have ended, and the event loop has dropped all calls.
    """
    for event in process.host.leave():
        command = event.label
        if isinstance(command, Command):
            if isinstance(command.part, Exchange):
                command.part.end()
            event.forget(command.name)
            command.part, command.action, command.after = None, OVER, ()
    for stream in process.streams():
        stream.seen.clear()
    for variable in [each for each in process.locals if not each.outlives]:
        variable.forget(process)
    process.task = process.frame = None
