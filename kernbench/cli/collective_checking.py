"""`kernbench collective check`: files proved right for every schedule, or what is wrong."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernbench.ccl.files.blocks import Blocks
from kernbench.ccl.files.load import load
from kernbench.ccl.files.prove import prove
from kernbench.ccl.files.verdict import Verdict
from kernbench.cli.failures import Exit, failed
from kernbench.errors import KernbenchError, UsageError
from kernbench.report import replacing


def check_files(
    files: Sequence[Path], slots: int | None, out: Path | None, *, verbose: bool
) -> int:
    """Prints of each file whether it is proved; returns the exit code.

    Args:
        slots: Places of each connection; None for as many as a file's protocol has.
        out: Gets all as JSON; None for no file.
        verbose: Whether to name waits that order nothing new.
    """
    code, told = Exit.OK, []
    for path in files:
        try:
            file = _loaded(path, slots)
        except KernbenchError as error:
            found = failed(error)
            code = max(code, Exit(found))
            told.append({"file": str(path), "error": error.as_json()})
            continue
        verdict = prove(file, slots)
        print("\n".join(_lines(file, verdict, verbose=verbose)))
        told.append(_as_json(file, verdict))
        if not verdict.proved:
            code = max(code, Exit.FAILED)
    if out is not None:
        try:
            with replacing(out) as stream:
                stream.write(json.dumps(told, indent=1) + "\n")
        except UsageError as error:
            return failed(error)
    return code


def _loaded(path: Path, slots: int | None) -> Blocks:
    """Returns a file.

    Raises:
        UsageError: If it is a plan of MSCCL++, and there are slots.
    """
    file = load(path)
    if slots is not None and file.plan is not None:
        raise UsageError(f"--slots: {path} is a plan of MSCCL++, whose puts wait for none")
    return file


def _lines(file: Blocks, verdict: Verdict, *, verbose: bool) -> list[str]:
    what = f"{file.operation} of {file.ranks} ranks, {file.protocol}, {' and '.join(file.modes)}"
    lines = [f"{file.path}: {what}"]
    if verdict.proved:
        plan = file.plan
        slots = f" with {verdict.slots} slots a connection; least {verdict.least}"
        blocks = len(file.every) if plan is None else len(plan.groups)
        parts = "parts of chunks" if plan is not None and plan.grain > 1 else "chunks"
        lines += [
            f"  proved for every schedule{slots if plan is None else ''}",
            f"  by one run: {verdict.steps} steps of {blocks} blocks, "
            f"{verdict.accesses} accesses without a race, {verdict.chunks} {parts} sent",
        ]
    lines += [f"  {finding.kind}: {finding.text}" for finding in verdict.findings]
    lines += [f"  note: {note}" for note in file.notes]
    if verdict.waits:
        lines.append(f"  {len(verdict.idle)} of {verdict.waits} waits order nothing new")
    if verbose:
        lines += [f"    {where}" for where in verdict.idle]
    return lines


def _as_json(file: Blocks, verdict: Verdict) -> dict[str, Any]:
    return {
        "file": file.path,
        "operation": file.operation,
        "ranks": file.ranks,
        "protocol": file.protocol,
        "proved": verdict.proved,
        "notes": list(file.notes),
        **asdict(verdict),
    }
