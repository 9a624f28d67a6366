"""`kernbench.torchrun_spawn`: ranks of the real PyTorch in a line, for tests and notebooks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernbench.errors import UsageError, libraries_passed_over
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.run_spec import Data, PytorchRun, Races
from kernbench.runtime_api.context import RuntimeContext
from kernbench.scripts.calls import spec_of_arguments, warn_of_local_file
from kernbench.scripts.pytorch import (
    DOCUMENT,
    check_pytorch,
    check_ranks,
    document_of,
    the_bridge,
    with_devices,
)


@dataclass(frozen=True, slots=True)
class Torchrun:
    """What came of `torchrun_spawn`.

    Attributes:
        context: The machine, for a look at its state after the run.
        returned: What the worker has returned, by rank; None for ranks that repeat what rank 0
            does, see `PytorchRun.same_ranks`.
        document: Simulated time, peak memory, late events, and the operations that were timed by
            their bytes, as plain values.
    """

    context: RuntimeContext
    returned: list[Any]
    document: dict[str, Any]


def torchrun_spawn(
    worker: Callable[..., Any],
    *,
    nprocs: int = 8,
    args: tuple[Any, ...] = (),
    nodes: int = 1,
    topology: str = "h200x8",
    overrides: Sequence[str] = (),
    data: Data = True,
    same_ranks: bool = False,
    witnesses: Sequence[int] | None = None,
    check_replicas: bool = False,
    races: Races = "error",
    **fields: Any,
) -> Torchrun:
    """Calls `worker(rank, *args)` in each rank of a program of PyTorch, on a simulated machine.

    The worker is code of the real PyTorch, such as `dist.init_process_group("nccl")`. Ranks share
    the arguments, and the globals of the worker's module.

    Args:
        worker: Function that runs as each rank.
        nprocs: Number of ranks, of all nodes.
        args: Arguments of the worker after the rank.
        nodes: Number of nodes that have the ranks.
        topology: A topology file, or the name of a shipped machine.
        overrides: Texts such as `system.sips.count=4`.
        data: Whether tensors hold values, as of `RunSpec`; `fake`: they hold none, and a value
            that the host reads of a device is 0.
        same_ranks: Whether ranks do the same, so that the first and the last one call the worker
            and the others repeat what rank 0 does; only without values.
        witnesses: With `same_ranks`, ranks that call the worker in place of the last one, as
            `(3, 17)`; each is compared with rank 0, step by step.
        check_replicas: Whether the parameters of DDP's replicas are compared in each step; only
            with values.
        races: What an access does that nothing orders, as of `PytorchRun`; with `warn`, `races` of
            the document lists them.
        fields: Further fields of `RunSpec`, such as `record="full"` or `seed=3`.

    Returns:
        The context, what each rank has returned, and the summary of the run.

    Raises:
        UsageError: If PyTorch is not installed or of a version that is not known to work, if the
            machine has not the devices, if ranks that do the same have values, if there are no
            such witnesses, if replicas without values are to be compared, or if an argument cannot
            be used.
        SpawnException: If a rank failed; the text tells each rank's failure with its line.
    """
    __tracebackhide__ = True
    made_up = data == "fake"
    given = {"topology": topology, "overrides": tuple(overrides), **fields}
    given["data"] = False if made_up else data
    own = ("args", "nprocs", "nodes", "same_ranks", "witnesses", "check_replicas", "races")
    spec = spec_of_arguments("kernbench.torchrun_spawn", given, own)
    if nprocs % nodes:
        raise UsageError(f"torchrun_spawn: {nprocs} ranks on {nodes} nodes: expected as many each")
    pytorch = PytorchRun(
        nodes=nodes,
        fake=made_up,
        same_ranks=same_ranks,
        witnesses=None if witnesses is None else tuple(witnesses),
        check_replicas=check_replicas,
        races=races,
    )
    spec = replace(spec, pytorch=pytorch, nproc_per_node=nprocs // nodes)
    check_pytorch(spec, pytorch)
    spec = with_devices(spec)
    warn_of_local_file(spec)
    bridge = the_bridge()
    returned: list[Any] = [None] * nprocs

    def run(rank: int) -> None:
        returned[rank] = worker(rank, *args)

    try:
        with libraries_passed_over(), RuntimeContext(spec, quiet=True) as ctx:
            check_ranks(spec, ctx)
            with bridge.bridged(
                data=spec.data,
                fake=pytorch.fake,
                same_ranks=pytorch.same_ranks,
                witnesses=pytorch.witnesses,
                ranks_per_node=nprocs // nodes,
                check_replicas=pytorch.check_replicas,
            ) as bridged:
                bridged.run(run, (), nprocs)
            document = document_of(ctx, spec, bridged)[DOCUMENT]
    except (SpawnException, UsageError) as error:
        # Its text has the users' lines; the frames below this one are not theirs.
        raise error.with_traceback(None) from None
    return Torchrun(ctx, returned, document)
