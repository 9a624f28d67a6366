"""Reads a collective's file, whichever form it has."""

from pathlib import Path

from kernbench.ccl.files import msccl_xml
from kernbench.ccl.files.blocks import Blocks
from kernbench.ccl.files.problems import MAX_FILE_BYTES, Mark, Problems
from kernbench.config.yaml_file import read_text
from kernbench.errors import UnsupportedError


def load(path: Path | str) -> Blocks:
    """Returns the collective of a file of MSCCL XML.

    Raises:
        ConfigError: Everything that is wrong with the file.
        UnsupportedError: If it is an execution plan of MSCCL++.
    """
    name, text = str(path), read_text(Path(path), MAX_FILE_BYTES)
    start = text.lstrip(" \t\r\n")[:1]
    if start == "{":
        raise UnsupportedError(
            f"{name} is JSON: execution plans of MSCCL++ are not read",
            hint="write the algorithm as MSCCL XML, as msccl-tools does",
        )
    if start != "<":
        Problems(name, text).stop(Mark(1, 1), "F10", "expected MSCCL XML, which begins with <algo")
    return msccl_xml.read(name, text)
