"""How many ranks the machine of a case can have."""

from kernbench.errors import UsageError
from kernbench.process.types import DeviceSelector
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.engines import load_machine


def devices_of(spec: RunSpec) -> int:
    """Returns the number of devices that ranks of a run may use.

    Raises:
        UsageError: If the machine cannot be made, or lacks one of the devices.
    """
    __tracebackhide__ = True
    try:
        return len(DeviceSelector(spec.devices).indices(load_machine(spec).world_size))
    except UsageError as error:
        # The mistake is in the test, so the frames below it would not help.
        raise error.with_traceback(None) from None
