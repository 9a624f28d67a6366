"""The options of the commands that run programs: one row each, for all that tells of them.

From these rows come the parameters of `kernbench run`, `torchrun` and `sweep`, their `--help`, the
command that repeats a run, and the tables of `docs/command_line.md`. Rows that set a field of
`RunSpec` are here; those of what a command shows and writes stand in the room `cli`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from kernbench.run_spec.values import Collapse, DefaultDevice, Races
from kernbench.sim_engine.dials import Fidelity

CommandName = Literal["run", "torchrun", "sweep"]
"""A command that runs programs."""

Kind = Literal["flag", "whole", "number", "text", "texts", "file"]
"""What an option takes: nothing, a number, a text, texts of which each has the option, a path."""

ALL: Final[tuple[CommandName, ...]] = get_args(CommandName)
ONE: Final[tuple[CommandName, ...]] = ("run", "torchrun")
"""Commands of a single run."""
OWN: Final[tuple[CommandName, ...]] = ("run", "sweep")
"""Commands that run programs of `kernbench.torch` and benches."""
REAL: Final[tuple[CommandName, ...]] = ("torchrun",)
"""Commands that run programs of PyTorch."""

PROGRAM: Final = "Program"
MACHINE: Final = "Machine"
SIMULATION: Final = "What is simulated"
LIMITS: Final = "Limits"
ORDER: Final = "Chance and order"
OUTPUT: Final = "Output"

ONE_NODE: Final = "h200x8"
MORE_NODES: Final = "h200x8_x4_nodes"
"""Machines of `kernbench torchrun` without `--topology`."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of some commands, and all that users read of it.

    Attributes:
        flags: Its names with dashes, the long one first.
        help: What `--help` says: a sentence, in which backticks enclose what one types.
        more: What the documents say behind it, too.
        kind: What it takes.
        choices: The texts of which it takes one; empty for any.
        least: The least number that it takes; None for any, or if `RunSpec` says it.
        metavar: What stands for its value in `--help`; None for its choices or its type.
        group: The heading under which `--help` has it.
        commands: The commands that have it.
        sets: The fields of `RunSpec` that it sets, those of `PytorchRun` as `pytorch.nodes`; empty
            if no specification holds it.
        default: Its default if it sets no field; else that is the field's.
        default_told: What holds without the option, if no value of it says so.
        varies: Whether a sweep varies what it sets, read from the words in their order.
        read: Returns what the field gets of a value, or a tuple for several fields; raises
            ValueError, which says what was expected.
        write: Returns the text of the fields' values.
        why: Why other commands do not have it; empty if their `--help` shows why.
    """

    flags: tuple[str, ...]
    help: str
    more: str = ""
    kind: Kind = "text"
    choices: tuple[str, ...] = ()
    least: int | None = None
    metavar: str | None = None
    group: str = OUTPUT
    commands: tuple[CommandName, ...] = ALL
    sets: tuple[str, ...] = ()
    default: Any = None
    default_told: str = ""
    varies: bool = False
    read: Callable[[Any], Any] = _same
    write: Callable[..., str] = str
    why: str = ""

    @property
    def name(self) -> str:
        """Its name as a parameter."""
        return self.flags[0].lstrip("-").replace("-", "_")


def schedule_text(picks: Sequence[int] | None) -> str:
    """Returns the text of a schedule in reports and for `--schedule`: `2.1`, or 0 for None."""
    return "0" if picks is None else ".".join(map(str, picks))


def _time_text(ps: int) -> str:
    from kernbench.units import TIME_UNITS, format_exact  # so that `--help` does not import it

    return "0" if not ps else format_exact(ps, TIME_UNITS).replace(" ", "")


def _time(text: str) -> int:
    if text == "0":
        return 0
    from kernbench.units import UnitError, parse_time

    try:
        ps = parse_time(text)
    except UnitError as error:
        raise ValueError(str(error)) from None
    if ps < 0:
        raise ValueError(f"expected a time from 0, such as '10 ms'; got {text!r}")
    return ps


def _numbers(between: str, form: str, expected: str) -> Callable[[str], tuple[int, ...]]:
    """Returns what reads numbers of a form, with a separator between, or says what it expected."""

    def read(text: str) -> tuple[int, ...]:
        pattern = f"{form}({re.escape(between)}{form})*"
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"expected {expected}")
        return tuple(map(int, text.split(between)))

    return read


def _word(word: str, value: Any, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns what reads a word as its value, and other texts otherwise."""
    return lambda text: value if text == word else read(text)


def _with_commas(numbers: Sequence[int] | str) -> str:
    return numbers if isinstance(numbers, str) else ",".join(map(str, numbers))


def _ranks(text: str) -> int | str:
    if text in {"gpu", "auto"}:
        return "gpu"
    if not re.fullmatch(r"[1-9]\d*", text, re.ASCII):
        raise ValueError("expected a number from 1, or gpu")
    return int(text)


def _nodes(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", text, re.ASCII)
    if match is None or match[2] not in {None, match[1]}:
        raise ValueError("expected a number of nodes; a run that grows or shrinks is not simulated")
    return int(match[1])


_PICKS: Final = _numbers(".", r"[1-9]\d*", "numbers from 1 with dots between, such as 2.1; or 0")
_SIPS: Final = _numbers(",", r"\d+", "numbers with commas between, such as 0,2,5; or all")
RANKS: Final = _numbers(",", r"\d+", "ranks with commas between, such as 3,17")
"""Reads some ranks."""

_WHETHER: Final = "Whether tensors hold values; off: only time is simulated"

NPROC_PER_NODE: Final = Option(
    flags=("--nproc-per-node",),
    metavar="RANKS",
    help="Ranks of each node, which each run the program; `gpu`: as many as a node has devices. "
    "Without it the program runs once, and may spawn ranks.",
    more=". `auto` is `gpu`",
    group=PROGRAM,
    commands=REAL,
    sets=("nproc_per_node",),
    read=_ranks,
)
NNODES: Final = Option(
    flags=("--nnodes",),
    metavar="NODES",
    help="Nodes of the machine that have ranks.",
    group=PROGRAM,
    commands=REAL,
    sets=("pytorch.nodes",),
    read=_nodes,
)
MODULE: Final = Option(
    flags=("--module", "-m"),
    kind="flag",
    help="Takes the name of a module, as `python -m` does.",
    group=PROGRAM,
    commands=REAL,
    sets=("pytorch.as_module",),
)
TOPOLOGY: Final = Option(
    flags=("--topology",),
    metavar="FILE",
    help="Machine: a YAML file, or the name of a shipped one.",
    group=MACHINE,
    commands=REAL,
    sets=("topology",),
    default_told=f"`{ONE_NODE}`; for 2 to 4 nodes `{MORE_NODES}`",
)

OF_SPEC: Final = (
    NPROC_PER_NODE,
    NNODES,
    MODULE,
    Option(
        flags=("--nproc-per-node",),
        kind="whole",
        metavar="RANKS",
        help="Runs a script as `torchrun` does: so many ranks, each with the file as its "
        "`__main__`.",
        more="; every rank has globals and `os.environ` of its own, and all are on one node",
        group=PROGRAM,
        commands=OWN,
        sets=("nproc_per_node",),
    ),
    Option(
        flags=("--as-torch",),
        kind="flag",
        help="Lets `import torch` in the file mean `kernbench.torch`.",
        more=", whether PyTorch is installed or not",
        group=PROGRAM,
        commands=OWN,
        sets=("as_torch",),
        why="`import torch` is the real one",
    ),
    TOPOLOGY,
    Option(
        flags=("--topology",),
        metavar="FILE",
        help="Machine: a YAML file, or the name of a shipped one.",
        group=MACHINE,
        commands=("run",),
        sets=("topology",),
    ),
    Option(
        flags=("--ccl",),
        metavar="FILE",
        help="File with the algorithms of collectives.",
        more=". If a `ccl.yaml` is used that was not named, standard error says so, unless "
        "`--quiet` is given. In the shipped one, `auto` takes the fastest algorithm of those that "
        "the machine names, or of all",
        group=MACHINE,
        commands=ONE,
        sets=("ccl",),
        default_told="`./ccl.yaml` if there is one, else the shipped one",
    ),
    Option(
        flags=("--set",),
        kind="texts",
        metavar="KEY=VALUE",
        help="Changes one value of the YAML files; may be repeated.",
        more=". `system...` belongs to the machine, `defaults...`, `algorithms...` and `queues...` "
        "to the algorithms",
        group=MACHINE,
        commands=ONE,
        sets=("overrides",),
    ),
    Option(
        flags=("--devices",),
        metavar="LIST",
        help="Which SIPs ranks may use, such as `0,2,5`; rank r has the r-th.",
        group=MACHINE,
        sets=("devices",),
        read=_word("all", "all", _SIPS),
        write=_with_commas,
    ),
    Option(
        flags=("--default-device",),
        choices=get_args(DefaultDevice),
        help="Where ranks make tensors without `device=`: on their device; or on the host, as "
        "PyTorch does, which keeps host and device apart.",
        more=". `cpu` finds what was "
        "[left on the host](tutorial.md#2-what-passes-here-and-fails-on-hardware)",
        group=SIMULATION,
        commands=OWN,
        sets=("default_device",),
        why="PyTorch itself decides where tensors are made",
    ),
    Option(
        flags=("--data",),
        choices=("on", "off"),
        help=f"{_WHETHER}.",
        group=SIMULATION,
        commands=OWN,
        sets=("data",),
        read=lambda text: text == "on",
        write=lambda data: "on" if data else "off",
    ),
    Option(
        flags=("--data",),
        choices=("on", "off", "fake"),
        help=f"{_WHETHER}; fake: as off, and a value that the program reads of a device is 0 "
        "unless it follows from values of the host.",
        group=SIMULATION,
        commands=REAL,
        sets=("data", "pytorch.fake"),
        read=lambda text: (text == "on", text == "fake"),
        write=lambda data, fake: "on" if data else "fake" if fake else "off",
    ),
    Option(
        flags=("--fidelity",),
        choices=get_args(Fidelity),
        help="How closely time is simulated; tile: every tile command; kernel: plans and memos "
        "proved equal to it; functional: no time.",
        group=SIMULATION,
        sets=("fidelity",),
    ),
    Option(
        flags=("--same-ranks",),
        kind="flag",
        help="With `--data off` or `fake`, for a program in which all ranks do the same: the first "
        "and the last rank run it, and the others repeat what rank 0 does.",
        group=SIMULATION,
        commands=REAL,
        sets=("pytorch.same_ranks",),
    ),
    Option(
        flags=("--witnesses",),
        metavar="RANKS",
        help="With `--same-ranks`: these ranks run the program in place of the last one, such as "
        "`3,17`; each is compared with rank 0, step by step.",
        group=SIMULATION,
        commands=REAL,
        sets=("pytorch.witnesses",),
        default_told="the last one",
        read=RANKS,
        write=_with_commas,
    ),
    Option(
        flags=("--check-replicas",),
        kind="flag",
        help="Compares the parameters of DistributedDataParallel's replicas before the forward "
        "and after the optimizer of each step; the first difference ends the run.",
        more=". Takes no simulated time; needs numbers",
        group=SIMULATION,
        commands=REAL,
        sets=("pytorch.check_replicas",),
    ),
    Option(
        flags=("--races",),
        choices=get_args(Races),
        help="What an access does that no stream and no wait orders (M10, C14, C15): `error` ends "
        "the run; `warn` goes on, and lists them at the end, such as those of a library.",
        group=SIMULATION,
        commands=REAL,
        sets=("pytorch.races",),
        why="such an access always ends the run",
    ),
    Option(
        flags=("--shadow",),
        kind="flag",
        help="Simulates what caches know as well, and compares.",
        more=". A difference is a bug of kernbench and ends with exit code 3",
        group=SIMULATION,
        sets=("shadow",),
    ),
    Option(
        flags=("--collapse",),
        choices=get_args(Collapse),
        help="With `--data off`; exact: ranks that do the same are simulated once, with the times "
        "that each would have, or refused; off: each is.",
        group=SIMULATION,
        commands=OWN,
        sets=("collapse",),
        why="`--same-ranks` runs one program for all ranks, and each keeps times of its own",
    ),
    Option(
        flags=("--roles",),
        metavar="FILE",
        help="With `--collapse exact`: which ranks run the same program, in lines such as "
        "`0-15,32-47 first stage`.",
        group=SIMULATION,
        commands=OWN,
        sets=("roles",),
        default_told="what the program says, or one role",
        why="they belong to `--collapse`",
    ),
    Option(
        flags=("--witnesses",),
        metavar="RANKS",
        help="With `--collapse exact`: these ranks run the program, too, such as `3,17`; each is "
        "compared with the one that runs for its class, command by command.",
        group=SIMULATION,
        commands=OWN,
        sets=("witnesses",),
        default_told="no rank",
        read=RANKS,
        write=_with_commas,
    ),
    Option(
        flags=("--eager-limit",),
        kind="whole",
        metavar="BYTES",
        help="Messages up to this size are sent without their receive; 0 finds every deadlock.",
        more=" that this hides",
        group=LIMITS,
        sets=("eager_limit",),
    ),
    Option(
        flags=("--watchdog",),
        kind="number",
        metavar="SECONDS",
        help="Wall time of your code without a simulated step, after which it is stopped; 0: "
        "never.",
        group=LIMITS,
        sets=("watchdog_s",),
    ),
    Option(
        flags=("--max-time",),
        metavar="TIME",
        help="Simulated time, such as `10ms`, that a run may not pass; 0: any.",
        more=". If it does, the report says where every rank is",
        group=LIMITS,
        sets=("max_time_ps",),
        read=_time,
        write=_time_text,
    ),
    Option(
        flags=("--step-budget",),
        kind="whole",
        metavar="COMMANDS",
        help="Commands that a rank may issue in a spawn; 0: any number.",
        more=". A loop that does not end then ends at the same command each time",
        group=LIMITS,
        sets=("step_budget",),
    ),
    Option(
        flags=("--group-limit",),
        kind="whole",
        metavar="GROUPS",
        help="Process groups that a rank may hold beside WORLD, that of all ranks.",
        group=LIMITS,
        sets=("group_limit",),
    ),
    Option(
        flags=("--class-limit",),
        kind="whole",
        metavar="CLASSES",
        help="With `--collapse exact`: classes of ranks that a run may have.",
        more=". If it has more, the report says what split them",
        group=LIMITS,
        commands=OWN,
        sets=("class_limit",),
        why="it belongs to `--collapse`",
    ),
    Option(
        flags=("--routing",),
        metavar="NAME|FILE",
        help="Which experts tokens choose: balanced, W0 to W7, zipf:S, or a file.",
        group=ORDER,
        sets=("routing",),
    ),
    Option(
        flags=("--seed",),
        kind="whole",
        metavar="N",
        help="Where the ranks' random generators start.",
        more=". With the rank it says what a rank draws until the program seeds it",
        group=ORDER,
        sets=("seed",),
    ),
    Option(
        flags=("--schedule",),
        metavar="PICKS",
        help="Which candidate each receive from any source takes, such as `2.1`; 0: the first to "
        "come.",
        more=". `--explore` reports such schedules",
        group=ORDER,
        sets=("schedule",),
        read=_word("0", None, _PICKS),
        write=schedule_text,
    ),
)
"""The options that say what runs, in the order in which `--help` and commands have them."""


def of_command(command: CommandName, options: Sequence[Option] = OF_SPEC) -> list[Option]:
    """Returns the options of a command, in their order.

    Args:
        options: Options of all commands.
    """
    return [option for option in options if command in option.commands]
