"""The options of commands that run programs: those of `run_spec`, and what is shown and written."""

from typing import Final

from kernbench.cli.output import TRACE_LIMIT
from kernbench.run_spec.options import (
    MACHINE,
    OF_SPEC,
    ONE,
    ORDER,
    PROGRAM,
    RANKS,
    REAL,
    CommandName,
    Option,
    of_command,
)

_SWEEP: Final[tuple[CommandName, ...]] = ("sweep",)
WHERE: Final = "Where runs take place"

_SPECS: Final = (
    Option(
        flags=("--spec",),
        kind="file",
        metavar="FILE",
        help="Repeats the run of a JSON file: a run specification, or what `--json` wrote.",
        more="; then neither `BENCH` nor another option that the file holds is given",
        group=PROGRAM,
        commands=("run",),
        why="`kernbench run --spec FILE` repeats its runs, too",
    ),
    Option(
        flags=("--spec",),
        kind="file",
        metavar="FILE",
        help="Runs a JSON list of run specifications, or what `--json` of `kernbench run` or "
        "`kernbench sweep` wrote.",
        more=". It stands in place of all that says what runs",
        group=PROGRAM,
        commands=_SWEEP,
    ),
)

_VARIED: Final = (
    Option(
        flags=("--topology",),
        metavar="FILE,...",
        help="Machines: YAML files, or names of shipped ones.",
        group=MACHINE,
        commands=_SWEEP,
        varies=True,
        default_told="`sip8`",
    ),
    Option(
        flags=("--ccl",),
        metavar="FILE,...",
        help="Files of algorithms of collectives.",
        group=MACHINE,
        commands=_SWEEP,
        varies=True,
        default_told="as of `kernbench run`",
    ),
    Option(
        flags=("--set",),
        kind="texts",
        metavar="KEY=V1,V2,...",
        help="Values of a key of the YAML files, as `--set` of `kernbench run`; a comma in a value "
        "is written as `\\,`.",
        group=MACHINE,
        commands=_SWEEP,
        varies=True,
    ),
    Option(
        flags=("--arg",),
        kind="texts",
        metavar="FLAG=V1,V2,...",
        help="Values of a flag of the bench, such as `--dtype=float32,bfloat16`.",
        more="; they stand behind `ARGUMENTS`",
        group=PROGRAM,
        commands=_SWEEP,
        varies=True,
    ),
)

_TRIES: Final = (
    Option(
        flags=("--explore",),
        kind="whole",
        least=0,
        metavar="SCHEDULES",
        help="Runs so often, at most, with other matches of receives from any source; an error if "
        "results differ.",
        more=". Results are what hosts read, and how ranks end; it says whether more "
        "schedules are left",
        group=ORDER,
        commands=ONE,
        default=0,
    ),
    Option(
        flags=("--hash-seeds",),
        kind="whole",
        least=0,
        metavar="SEEDS",
        help="Runs under so many hash seeds of Python; an error if ranks with different seeds, as "
        "on hardware, would disagree.",
        more=". Each runs in a process of its own",
        group=ORDER,
        commands=ONE,
        default=0,
    ),
)

OUTPUTS: Final = (
    Option(
        flags=("--trace",),
        kind="file",
        metavar="FILE",
        help="Writes a trace for Perfetto; compressed if the name ends in `.gz`.",
        commands=ONE,
    ),
    Option(
        flags=("--trace-ranks",),
        metavar="RANKS",
        help="With `--trace`: the ranks that are shown, such as `0,8`.",
        commands=ONE,
        default_told="all",
        read=RANKS,
    ),
    Option(
        flags=("--trace-kineto",),
        kind="file",
        metavar="DIR",
        help="Writes a trace for each rank as PyTorch's profiler does, for tools that read it.",
        more=": `DIR/rank-0.pt.trace.json` and so on",
        commands=ONE,
    ),
    Option(
        flags=("--report",),
        kind="file",
        metavar="FILE",
        help="Writes an HTML page that shows the run.",
        more=", one file that opens from disk: results, bandwidth over size, what bounds the run "
        "and where its time went, utilisation and memory over time, the slowest commands with "
        "their lines, and if the run fails, the report",
        commands=ONE,
    ),
    Option(
        flags=("--trace-limit",),
        kind="whole",
        least=0,
        metavar="RECORDS",
        help="Most records that a trace, a page or a table of times takes, the first ones; 0: all.",
        commands=ONE,
        default=TRACE_LIMIT,
    ),
    Option(
        flags=("--flight-recorder",),
        kind="file",
        metavar="FILE",
        help="If ranks fail or are interrupted, writes what each did last, as JSON.",
        commands=("run",),
    ),
    Option(
        flags=("--flight-recorder",),
        kind="file",
        metavar="FOLDER",
        help="Writes what each rank called together with others, however the run ends, as "
        "PyTorch's flight recorder does: "
        "`python -m torch.distributed.flight_recorder.fr_trace FOLDER` reads it.",
        commands=REAL,
    ),
    Option(
        flags=("--json",),
        kind="file",
        metavar="FILE",
        help="Writes the run specification and the results, or the failure, as JSON.",
        more=". It says what failed in each rank. Times in it are simulated, and null with "
        "`--fidelity functional`",
        commands=ONE,
    ),
    Option(
        flags=("--breakdown",),
        kind="flag",
        help="Prints where each rank's time went.",
        more=". Exposed host: the device is idle until the host issues the next command",
        commands=ONE,
    ),
    Option(
        flags=("--explain-time",),
        kind="flag",
        help="Prints what bounds the run, and the ten kernels that take most time.",
        more=". See [what bounds a run](#what-bounds-a-run)",
        commands=ONE,
    ),
    Option(
        flags=("--quiet", "-q"),
        kind="flag",
        help="Prints errors and results files only.",
        commands=ONE,
    ),
    Option(
        flags=("--verbose", "-v"),
        kind="flag",
        help="Prints which algorithm each operation is given.",
        more=", and each size and group, once, on standard error",
        commands=ONE,
    ),
)
"""What sets a field of `Output`, by its name."""

_OF_SWEEP: Final = (
    Option(
        flags=("--on",),
        choices=("local", "ray"),
        help="Where runs take place: processes of this machine, or Ray (`pip install ray`).",
        more=". On Ray they are [tasks](sweeps.md#3-more-cores-more-machines)",
        group=WHERE,
        commands=_SWEEP,
        default="local",
    ),
    Option(
        flags=("--address",),
        metavar="ADDRESS",
        help="Cluster of Ray, such as `10.0.0.1:6379` or `auto`.",
        more=". `ray.init` takes it; its nodes get the files below the working directory",
        group=WHERE,
        commands=_SWEEP,
        default_told="Ray starts on this machine",
    ),
    Option(
        flags=("--jobs",),
        kind="whole",
        least=1,
        metavar="N",
        help="Most runs at a time.",
        more=". Processes live on from run to run",
        group=WHERE,
        commands=_SWEEP,
        default_told="`1`; on Ray, as many as it has CPUs",
    ),
    Option(
        flags=("--timeout",),
        kind="number",
        least=0,
        metavar="SECONDS",
        help="Wall time that a run may take, after which it has failed; 0: any.",
        group=WHERE,
        commands=_SWEEP,
        default=0.0,
    ),
    Option(
        flags=("--json",),
        kind="file",
        metavar="FILE",
        help="Writes the records as JSON.",
        more=", one a line: what `--json` of `kernbench run` writes, with `key`, `varied`, `ok`, "
        "`sim_ps`, `report`, `breakdown`, `wall_s`",
        commands=_SWEEP,
    ),
    Option(
        flags=("--csv",),
        kind="file",
        metavar="FILE",
        help="Writes the rows of all results.",
        more=". Each failure is a row, too; nested keys are joined with dots",
        commands=_SWEEP,
    ),
    Option(
        flags=("--plot",),
        kind="file",
        metavar="FILE",
        help="Draws a picture, `.png`, `.svg` or `.pdf` (`pip install matplotlib`).",
        more=". See [sweeps.md](sweeps.md#2-a-picture-of-it)",
        commands=_SWEEP,
    ),
    Option(
        flags=("--x",),
        metavar="COLUMN",
        help="Column of its horizontal axis.",
        more=". It is a column of the table of `--csv`, or its end behind a dot",
        commands=_SWEEP,
        default_told="`size_bytes` if it varies, else the first number that is varied",
    ),
    Option(
        flags=("--y",),
        metavar="COLUMN",
        help="Column of its vertical axis.",
        commands=_SWEEP,
        default_told="bus bandwidth over sizes, else the first time, else `sim_ps`",
    ),
    Option(
        flags=("--hue",),
        metavar="COLUMN",
        help="Column whose values each have a line.",
        commands=_SWEEP,
        default_told="all that varies besides",
    ),
    Option(
        flags=("--report",),
        kind="file",
        metavar="FILE",
        help="Writes an HTML page that shows the records.",
        more="; every run then keeps what its `breakdown` needs",
        commands=_SWEEP,
    ),
    Option(
        flags=("--resume",),
        kind="flag",
        help="Goes on with what the files or the journal have.",
        more=": where an interrupted sweep was, or with runs that are added to a finished one; "
        "what has a record is not run again",
        commands=_SWEEP,
    ),
    Option(
        flags=("--quiet", "-q"),
        kind="flag",
        help="Prints errors only.",
        commands=_SWEEP,
    ),
)

OPTIONS: Final = (*_SPECS, *_VARIED, *OF_SPEC, *_TRIES, *OUTPUTS, *_OF_SWEEP)
GROUPS: Final = tuple(dict.fromkeys(option.group for option in OPTIONS))


def options_of(command: CommandName) -> list[Option]:
    """Returns the options of a command in the order of its help, group by group."""
    return sorted(of_command(command, OPTIONS), key=lambda option: GROUPS.index(option.group))


def outputs_of(command: CommandName) -> list[Option]:
    """Returns the options of a command that say what a run shows and writes."""
    return of_command(command, OUTPUTS)
