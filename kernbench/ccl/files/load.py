"""Reads a collective's file, whichever form it has."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kernbench.ccl.files import msccl_xml, mscclpp_json
from kernbench.ccl.files.blocks import Blocks
from kernbench.ccl.files.one_sided_blocks import as_blocks
from kernbench.ccl.files.problems import MAX_FILE_BYTES, Mark, Problems
from kernbench.config.yaml_file import read_text


def load(path: Path | str) -> Blocks:
    """Returns the collective of a file: MSCCL XML, or an execution plan of MSCCL++.

    Raises:
        ConfigError: Everything that is wrong with the file.
        UnsupportedError: If it is a plan of an older MSCCL++, or needs what is not simulated.
    """
    name, text = str(path), read_text(Path(path), MAX_FILE_BYTES)
    start = text.lstrip(" \t\r\n")[:1]
    if start == "{":
        file = as_blocks(*mscclpp_json.read(name, text))
    elif start == "<":
        file = msccl_xml.read(name, text)
    else:
        told = "expected MSCCL XML, which begins with <algo, or a plan of MSCCL++, with {"
        Problems(name, text).stop(Mark(1, 1), "F10", told)
    where = next(_lost_inputs(file), None) if "out of place" in file.modes else None
    if where is None:
        return file
    note = f"a call out of place loses its input, which is kept here: {where} writes there"
    return replace(file, notes=(*file.notes, note))


def _lost_inputs(file: Blocks) -> Iterator[str]:
    """Yields the steps that write inputs."""
    if file.plan is None:
        for block, number, step in file.steps:
            if step.kind.stores and step.target.buffer == "i":
                yield file.where(block, number)
        return
    for group in file.plan.groups:
        for number, deed in enumerate(group.deeds):
            if any(span.buffer == "i" for move in deed.moves for span in move.writes):
                yield file.plan.where(group, number)
