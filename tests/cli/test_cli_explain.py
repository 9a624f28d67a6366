"""`kernbench explain`, and the lines of reports that name it."""

import re
import traceback
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.cli.app import app
from kernbench.cli.explaining import entries
from kernbench.cli.failures import Exit, failed
from kernbench.config.shipped import shipped
from kernbench.errors import KernbenchError, UsageError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.topology import load_topology, shipped_machines

ENTRIES = entries(shipped("docs/errors.md").read_text(encoding="utf-8"))

PAGE = """\
# Codes

## How to

### C1

**A title**

What it
means.

```text
Error: [C1]
  a fact
```

What to do: this.

## More: a family

### C2

**Another**

None.
"""


def _explained(*codes: str) -> str:
    done = CliRunner().invoke(app, ["explain", *codes])
    assert done.exit_code == Exit.OK
    return done.stdout


def _no_peer(rank: int) -> None:
    """Fails with P9, on rank 1 with C18, on rank 2 without a code, on others with P9 again."""
    if rank == 1:
        dist.barrier()
    if rank == 2:
        raise ValueError("no code")
    dist.init_process_group("nccl")
    dist.send(torch.ones(1, device="cuda"), dst=9)


def _failure(kernbench: Kernbench) -> SpawnException:
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(_no_peer, nprocs=4)
    return caught.value


def test_entries_are_found_by_their_codes() -> None:
    found = entries(PAGE)
    assert list(found) == ["C1", "C2"]
    assert found["C1"].title == "A title"
    assert found["C1"].body.startswith("What it\nmeans.")
    assert found["C2"] == ("Another", "None.")


def test_an_entry_is_printed_without_marks() -> None:
    text = _explained("c14")
    title, _, body = text.partition("\n\n")
    assert title == f"C14: {ENTRIES['C14'].title}"
    assert "```" not in body
    assert "\n    AccessError: [C14] each of ranks 0-1 wrote a tensor" in body
    assert "\n      hint: call work.wait() first\n\nWhat to do: " in body


def test_several_codes_are_explained_in_turn_and_once() -> None:
    assert re.findall(r"^([A-Z]\d+): ", _explained("P4", "C1", "p4"), re.MULTILINE) == ["P4", "C1"]


def test_without_codes_all_titles_are_listed() -> None:
    lines = _explained().splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [
        [code, entry.title] for code, entry in ENTRIES.items()
    ]


def test_a_code_that_is_not_there_ends_with_2() -> None:
    done = CliRunner().invoke(app, ["explain", "C1", "C99"])
    assert done.exit_code == Exit.USAGE
    assert done.stdout == ""
    assert done.stderr == (
        "kernbench: there is no code C99\n"
        f"  expected one of {', '.join(ENTRIES)}\n"
        "  hint: did you mean `C9`?\n"
    )


def test_a_report_ends_with_what_explains_its_codes(
    kernbench: Kernbench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed(_failure(kernbench), "kernbench run it.py") == Exit.FAILED
    err = capsys.readouterr().err
    *_, replay, explain = err.splitlines()
    assert replay == "replay: kernbench run it.py"
    assert explain == "explain: kernbench explain C18 P9"
    assert err.count("explain: ") == 1
    codes = explain.split()[3:]
    assert re.findall(r"^([A-Z]\d+): ", _explained(*codes), re.MULTILINE) == codes


def test_a_file_with_several_mistakes_has_all_their_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shipped_machines()["sip8"].read_text(encoding="utf-8")
    file = tmp_path / "m.yaml"
    file.write_text(text.replace("count: 8", "count: -8\n    cont: 8").replace("pes: 8", "pes: 0"))
    with pytest.raises(UsageError) as caught:
        load_topology(file)
    assert failed(caught.value) == Exit.USAGE
    assert capsys.readouterr().err.endswith("\nexplain: kernbench explain F3 F1\n")


@pytest.mark.parametrize("error", [KernbenchError("no"), UsageError("no"), ValueError("no")])
def test_a_report_without_a_code_names_no_command(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    failed(error)
    assert "explain" not in capsys.readouterr().err
    assert not hasattr(error, "__notes__")


def test_a_traceback_ends_with_the_command_and_the_text_does_not_have_it(
    kernbench: Kernbench,
) -> None:
    whole = _failure(kernbench)
    shown = "".join(traceback.format_exception_only(whole))
    assert shown.endswith("\nreplay: seed 0, schedule 0\nexplain: kernbench explain C18 P9\n")
    alone = KernbenchError("no", hint="yes", code="M5")
    shown = "".join(traceback.format_exception_only(alone))
    assert shown.endswith("[M5] no\n  hint: yes\nexplain: kernbench explain M5\n")
    for error in (whole, alone):
        assert "explain: " not in str(error)
