"""Programs as Python source, one line a step, and how that runs."""

import linecache
import re
from typing import Any, NamedTuple

from programs_steps import (
    OBJECTS,
    PATTERN,
    Call,
    Delay,
    Local,
    Program,
    Read,
    Ref,
    Slot,
    Step,
    Stop,
    Wait,
    used_slots,
)

from kernbench.runtime_api.context import RuntimeContext

FILE = "program.py"

_LONGEST = 64
"""Elements of a tensor whose values are written out."""

_HEAD = """\
import sys
import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.multiprocessing as mp
"""


class Source(NamedTuple):
    """The text of a program.

    Attributes:
        text: A whole module, which runs by itself, too.
        lines: By rank, the line number of each step.
    """

    text: str
    lines: list[list[int]]

    def line(self, rank: int, index: int) -> int:
        """Returns the line of a step; that of the rank's end for the one behind the last."""
        lines = self.lines[rank]
        return lines[index] if index < len(lines) else lines[-1] + 1


def source_of(program: Program) -> Source:
    """Returns the text of a program."""
    out = _HEAD.splitlines()
    lines = []
    for rank, steps in enumerate(program.steps):
        out += ["", "", f"def rank{rank}(seen):", '    dist.init_process_group("ccl")']
        tab = "    "
        before = _groups(program, rank)
        before += [f"t{i} = {_made(program.slots[i], rank)}" for i in used_slots(steps)]
        if program.scoped and (before or steps):  # a block is not empty
            out.append("    with dist.group_scope():")
            tab = "        "
        out += [f"{tab}{line}" for line in before]
        mine = []
        for step in steps:
            out.append(f"{tab}{_text(program, rank, step)}")
            mine.append(len(out))
        out.append("    dist.destroy_process_group()")
        lines.append(mine or [len(out) - 1])
    functions = ", ".join(f"rank{rank}" for rank in range(program.ranks))
    out += ["", "", "def worker(rank, seen):", f"    [{functions}][rank](seen[rank])"]
    seen = f"[[] for _ in range({program.ranks})]"
    out += ["", "", 'if __name__ == "__main__":']
    out += [f"    mp.spawn(worker, args=({seen},), nprocs={program.ranks})"]
    return Source("\n".join(out) + "\n", lines)


def _groups(program: Program, rank: int) -> list[str]:
    """Returns the lines in which a rank makes the groups."""
    split = {index for one in program.splits for index in one.groups}
    lines = [
        f"g{number} = dist.new_group({list(members)})"
        for number, members in enumerate(program.groups)
        if number and number not in split
    ]
    for one in program.splits:
        names = [f"g{number}" for number in one.groups]
        lines.append(" = ".join([*names, "dist.GroupMember.NON_GROUP_MEMBER"]))
        mine = [f"g{number} = " for number in one.groups if rank in program.groups[number]]
        if one.mesh:
            if not one.dim:
                lines.append(f'mesh = dist.device_mesh.init_device_mesh("cuda", {one.mesh})')
            made = f"mesh.get_group({one.dim})"
        else:
            made = f"dist.split_group(None, {[list(program.groups[i]) for i in one.groups]})"
        lines.append("".join([*mine, made]))
    return lines


def run(ctx: RuntimeContext, program: Program, source: Source) -> list[list[Any]]:
    """Runs a program, and returns by rank what it has read, in order."""
    # As for modules that are loaded in unusual ways: no time of a file, so never looked for.
    linecache.cache[FILE] = (len(source.text), None, source.text.splitlines(True), FILE)
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(source.text, FILE, "exec"), names)
    seen: list[list[Any]] = [[] for _ in range(program.ranks)]
    with ctx:
        ctx.multiprocessing.spawn(names["worker"], args=(seen,), nprocs=program.ranks)
    return seen


def shown_lines(text: str) -> set[int]:
    """Returns the lines of a program that a report names."""
    found = re.findall(rf"{re.escape(FILE)}:(\d+)|\(l\.(\d+)\)", text)
    return {int(one or other) for one, other in found}


def shown_ranks(text: str) -> set[int]:
    """Returns the ranks that a report names: `rank 3`, `ranks 0-2, 5`, or in a cycle."""
    ranks: set[int] = set()
    for runs in re.findall(r"\branks? ((?:\d+(?:-\d+)?(?:, )?)+)", text):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", runs):
            ranks.update(range(int(first), int(last or first) + 1))
    ranks.update(int(rank) for rank in re.findall(r"(?:<-|->|: |; |for )(\d+)\b", text))
    return ranks


def _made(slot: Slot, rank: int) -> str:
    if slot.values is None:
        return f'torch.empty({slot.size}, dtype=torch.{slot.dtype}, device="cuda")'
    values = str(list(slot.values[rank]))
    if slot.size > _LONGEST:
        values = PATTERN.format(size=slot.size, rank=rank)
    return f'torch.tensor({values}, dtype=torch.{slot.dtype}, device="cuda")'


def _text(program: Program, rank: int, step: Step) -> str:
    match step:
        case Call():
            return _call(program, rank, step)
        case Wait(event, many):
            return f"for w in w{event}: w.wait()" if many else f"w{event}.wait()"
        case Local(ref, method, other):
            argument = _ref(program, other) if isinstance(other, Ref) else repr(other)
            return f"{_ref(program, ref)}.{method}({argument})"
        case Delay(count):
            return f'for _ in range({count}): torch.ones(4, device="cuda")'
        case Read(ref):
            return f"seen.append({_ref(program, ref)}.tolist())"
        case Stop(statement):
            return statement


def _ref(program: Program, ref: Ref, cast: str = "") -> str:
    text = f"t{ref.slot}"
    if (ref.start, ref.stop) != (0, program.slots[ref.slot].size):
        text += f"[{ref.start}:{ref.stop}]"
    if ref.width:
        text += f".view({ref.size // ref.width}, {ref.width})"
    return f"{text}.to(torch.{cast})" if cast else text


def _call(program: Program, rank: int, call: Call) -> str:
    if call.name in OBJECTS:
        return _objects(program, rank, call)
    handle = f"w{call.event}"
    if call.name == "coalesced":
        options = [f"group=g{call.group}"] if call.group else []
        options += ["async_ops=True"] if call.handle else []
        head = f"with dist._coalescing_manager({', '.join(options)})"
        body = "; ".join(_function(program, rank, part) for part in call.parts)
        return f"{head} as {handle}: {body}" if call.handle else f"{head}: {body}"
    text = _function(program, rank, call)
    return f"{handle} = {text}" if call.handle else text


def _function(program: Program, rank: int, call: Call) -> str:
    name, at_root = call.name, rank == call.root
    given = [_ref(program, ref, call.cast) for ref in call.given]
    taken = [_ref(program, ref, call.cast) for ref in call.taken]
    arguments: list[str] = []
    match name:
        case "all_reduce" | "reduce":
            arguments = given
        case "broadcast":
            arguments = taken
        case "all_gather" | "all_to_all":
            inputs = given[0] if name == "all_gather" else _list(given)
            arguments = [_list(taken), inputs]
        case "all_gather_into_tensor" | "reduce_scatter_tensor" | "all_to_all_single":
            arguments = [taken[0], given[0]]
        case "reduce_scatter":
            arguments = [taken[0], _list(given)]
        case "gather":
            arguments = [given[0], *([f"gather_list={_list(taken)}"] if at_root else [])]
        case "scatter":
            arguments = [taken[0], *([f"scatter_list={_list(given)}"] if at_root else [])]
        case "send" | "isend":
            arguments = [given[0], f"dst={call.peer}"]
        case "recv" | "irecv":
            arguments = [taken[0], *([] if call.peer is None else [f"src={call.peer}"])]
        case "batch_isend_irecv":
            return f"dist.{name}({_list([_p2p(program, part) for part in call.parts])})"
    if name in {"reduce", "gather"}:
        arguments.append(f"dst={call.root}")
    if name in {"broadcast", "scatter"}:
        arguments.append(f"src={call.root}")
    if call.receives is not None and call.sends is not None:
        arguments += [f"{list(call.receives)}", f"{list(call.sends)}"]
    if call.op:
        arguments.append(f"op=dist.ReduceOp.{call.op}")
    if call.group:
        arguments.append(f"group=g{call.group}")
    if call.tag:
        arguments.append(f"tag={call.tag}")
    if call.handle and not call.is_message:
        arguments.append("async_op=True")
    return f"dist.{name}({', '.join(arguments)})"


def _p2p(program: Program, part: Call) -> str:
    (ref,) = part.given or part.taken
    options = [f"dist.{part.name}", _ref(program, ref, part.cast), str(part.peer)]
    options += [f"group=g{part.group}"] if part.group else []
    options += [f"tag={part.tag}"] if part.tag else []
    return f"dist.P2POp({', '.join(options)})"


def _objects(program: Program, rank: int, call: Call) -> str:
    at_root, count = rank == call.root, len(program.groups[call.group])
    mine, empty = call.objects, f"[None] * {count}"
    group = f", group=g{call.group}" if call.group else ""
    match call.name:
        case "all_gather_object":
            made, text = empty, f"o, {mine[0]!r}"
        case "gather_object":
            made = empty if at_root else "None"
            text = f"{mine[0]!r}, o, dst={call.root}"
        case "scatter_object_list":
            given = list(mine) if at_root else None
            made, text = "[None]", f"o, {given!r}, src={call.root}"
        case _:
            made = repr(list(mine)) if at_root else f"[None] * {len(mine)}"
            text = f"o, src={call.root}"
    return f"o = {made}; dist.{call.name}({text}{group}); seen.append(o)"


def _list(items: list[str]) -> str:
    return f"[{', '.join(items)}]"
