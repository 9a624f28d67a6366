"""A run as one value: the machine, the dials, the program; and the options that say it."""

from kernbench.run_spec.files import read_json
from kernbench.run_spec.options import schedule_text
from kernbench.run_spec.specification import CCL_ROOTS, MACHINE_ROOTS, PytorchRun, RunSpec
from kernbench.run_spec.values import Data, DefaultDevice, Races

__all__ = [
    "CCL_ROOTS",
    "MACHINE_ROOTS",
    "Data",
    "DefaultDevice",
    "PytorchRun",
    "Races",
    "RunSpec",
    "read_json",
    "schedule_text",
]
