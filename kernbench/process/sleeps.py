"""`torch.cuda._sleep`: a kernel that counts cycles, and does nothing else."""

from operator import index

from kernbench.errors import not_simulated
from kernbench.process.act import act
from kernbench.process.process import Process
from kernbench.sim_engine.engine import Hold


def sleep(process: Process, sip: int, cycles: int) -> None:
    """Lets the current stream of a device wait for cycles of its clock, and for a launch.

    It is one thread of one PE, so it holds up no other stream.

    Args:
        process: The rank, or main.
        sip: The device.
        cycles: How many; none if they are negative.

    Raises:
        UnsupportedError: If the machine's file does not say what the clock is.
    """
    engine = process.engine
    spec = engine.devices[sip].sip
    if spec.clock is None:
        raise not_simulated(
            f"torch.cuda._sleep on {engine.topology.name}, whose file gives no clock,",
            "give system.sip.clock, such as --set system.sip.clock='1.98 GHz'",
        )
    duration = spec.launch + spec.clock.duration_ps(max(index(cycles), 0))
    work, args = Hold(engine, None, duration, None), {"cycles": cycles}
    act(process, "torch.cuda._sleep", "kernel", process.current_stream(sip), work, args=args)
