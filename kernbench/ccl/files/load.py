"""Reads a collective's file, whichever form it has."""

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
        return as_blocks(*mscclpp_json.read(name, text))
    if start != "<":
        told = "expected MSCCL XML, which begins with <algo, or a plan of MSCCL++, with {"
        Problems(name, text).stop(Mark(1, 1), "F10", told)
    return msccl_xml.read(name, text)
