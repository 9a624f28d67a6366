"""Where a rank has left for which others wait: the line at which `main()` returned."""

from pathlib import Path

import pytest

from kernbench.cli.app import app

EARLY = """\
import os, sys
import torch
import torch.distributed as dist

def train(rank):
    x = torch.ones(4, device="cuda")
    for step in range(3):
        if rank == 1 and step == 2:
            return {early}
        dist.all_reduce(x)

def main():
    dist.init_process_group("nccl")
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    train(rank)
    {then}

if __name__ == "__main__":
    {call}
"""

WAYS = {
    "destroy": (
        {"early": "", "then": "dist.destroy_process_group()", "call": "main()"},
        "missing rank 1 returned at FILE:9:13: return, and destroyed the group at line 17; its",
    ),
    "exit": (
        {"early": "x.sum()", "then": "return 0", "call": "sys.exit(main())"},
        "missing rank 1 returned at FILE:9:13: return x.sum(); its last",
    ),
    "work afterwards": (
        {
            "early": "",
            "then": "torch.ones(4).sum().item(); dist.destroy_process_group()",
            "call": "main()",
        },
        "missing rank 1 destroyed the group at FILE:17:33: torch.ones(4).sum().item(); "
        "dist.destroy_process_group(); its last",
    ),
}


@pytest.mark.parametrize(
    "command", ["run --as-torch", pytest.param("torchrun", marks=pytest.mark.torch)]
)
@pytest.mark.parametrize("way", WAYS)
def test_the_line_at_which_main_returned(
    command: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, said = WAYS[way]
    file = tmp_path / "train.py"
    file.write_text(EARLY.format(**parts))
    with pytest.raises(SystemExit) as ended:
        app([*command.split(), "--nproc-per-node", "2", str(file)])
    told = capsys.readouterr().err.replace(str(file), "FILE")
    assert ended.value.code == 1
    assert "[C1]" in told
    assert said in told
