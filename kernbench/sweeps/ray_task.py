"""The task of Ray: one run, in the process of a worker of Ray; see `on_ray`.

The run takes place in a child of that process, as on this machine, so that it may end its process
without ending one of Ray's. The child lives on from task to task.
"""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from kernbench.run_spec import RunSpec
from kernbench.sweeps import printed
from kernbench.sweeps.keys import Keys
from kernbench.sweeps.local import crew_of, record_of
from kernbench.sweeps.records import Run
from kernbench.workers.crew import Crew, Job


def run(message: Mapping[str, Any]) -> dict[str, Any]:
    """Runs what a message asks for; returns the `record`, or the node whose files `differs`.

    Args:
        message: `spec`, the specification as plain values; `key`, that of the run; `limit_s` of
            wall time, or None; and `folder`, in which to run, or None for the folder as it is.
    """
    if message["folder"] is not None:
        os.chdir(message["folder"])
    spec, key = RunSpec.from_json(message["spec"]), message["key"]
    keys, crew = _of_this_process()
    if keys.of(spec) != key:
        return {"differs": socket.gethostname()}
    start = time.perf_counter()
    with printed.folder() as folder:
        fields = {"spec": message["spec"], "printed": str(folder)}
        (answer,) = crew.run([Job(key, "run", fields, message["limit_s"])])
        wall_s = round(time.perf_counter() - start, 6)
        return {"record": record_of(Run(spec, {}, key), answer, folder, wall_s).to_json()}


_kept: Final[list[tuple[Keys, Crew]]] = []


def _of_this_process() -> tuple[Keys, Crew]:
    """Returns what lives on from task to task."""
    if not _kept:
        _kept.append((Keys(), crew_of(1)))
    return _kept[0]
