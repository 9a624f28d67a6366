"""Instructions told from their bits, against what NVIDIA's disassembler prints of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.errors import UsageError
from kernbench.triton.instructions import Instruction, Kind, instructions_of

KERNELS = Path(__file__).parent / "launched_machine_code.py"
LABEL = re.compile(r"\s*(\.L_\w+):")
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(.*?)\s*;")
REGISTER = re.compile(r"U?R\d+")
PREDICATE = re.compile(r"!?U?P(\d|T)")
CONSTANT = re.compile(r"-?0x[0-9a-f]+")
MOVES: dict[str, Kind] = {"LDG": "load", "LDGSTS": "copy", "LDL": "spill", "STL": "spill"}
WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


def read(listing: str) -> list[Instruction]:
    """Returns the instructions of what `nvdisasm` prints."""
    labels: dict[str, int] = {}
    texts: list[str] = []
    for line in listing.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(texts)
        elif text := INSTRUCTION.match(line):
            texts.append(text[1])
    return [told(text, labels) for text in texts]


def told(text: str, labels: dict[str, int]) -> Instruction:
    name, *words = text.split(maxsplit=1)[0].split(".")
    if name == "BRA":
        return Instruction("branch", labels[text.split("`(")[1].rstrip(")")])
    if name in MOVES:
        size = next((WIDTHS[word] for word in reversed(words) if word in WIDTHS), 4)
        return Instruction(MOVES[name], size)
    if name == "ATOMG":
        return Instruction("" if text.split(", ")[1] == "RZ" else "atomic")
    if name in ("IADD3", "VIADD", "UIADD3"):
        return step(text)
    if name in ("ISETP", "UISETP"):
        compared = text.replace(".reuse", "").split(", ")[2:4]
        return Instruction("test", 0, tuple(map(register, filter(REGISTER.fullmatch, compared))))
    if name == "WARPGROUP" and "DEPBAR" in words:
        return Instruction("under way", int(text.split(", ")[1], 16))
    kinds = {"NOP": "idle", "STG": "store", "UTMALDG": "tensor copy", "BAR": "barrier"}
    return Instruction(kinds.get(name, ""))  # type: ignore[arg-type]


def register(name: str) -> int:
    """Returns the number of a register; that of one that a warp shares is above those of others."""
    return int(name.lstrip("UR")) + 256 * name.startswith("U")


def step(text: str) -> Instruction:
    """Returns an addition, as a step if it adds one constant to the register that it changes."""
    name, made, *added = text.replace(".reuse", "").replace(" ", ", ", 1).split(", ")
    added = [each for each in added if not PREDICATE.fullmatch(each)]
    read, by, *others = added
    alone = made == read and CONSTANT.fullmatch(by) and set(others) <= {"RZ", "URZ"}
    if not alone or ".X" in name:
        return Instruction()
    amount = int(by, 16)
    amount -= (1 << 32) * (amount >> 31 == 1)  # VIADD's constants are printed without a sign
    return Instruction("step", amount, (register(made),))


@pytest.mark.torch
def test_bits_say_what_the_disassembler_prints(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    subprocess.run([sys.executable, str(KERNELS), str(tmp_path)], check=True)  # no rank is there
    seen: dict[int, set[str]] = {}
    for file in tmp_path.glob("*.cubin"):
        arch = int(file.name.partition("_")[0])
        tool = triton.knobs.nvidia.nvdisasm.path
        done = subprocess.run([tool, str(file)], capture_output=True, text=True, check=True)
        found = instructions_of(file.read_bytes(), arch)
        assert found == read(done.stdout), file.name
        seen.setdefault(arch, set()).update(each.kind for each in found)
    common = {"", "idle", "branch", "load", "store", "atomic", "copy", "barrier", "step", "test"}
    common.add("spill")
    assert seen == {
        80: common,
        90: common | {"under way", "tensor copy"},
        100: common | {"tensor copy"},
    }


def test_what_is_no_machine_code_is_refused() -> None:
    with pytest.raises(UsageError, match="sm_70 or newer"):
        instructions_of(b"", 90)
