"""Operations of profiles: which of them shapes tell, and how long one takes, by hand."""

import json
from math import prod
from pathlib import Path

import pytest

from kernbench.validation.operations import OPERATIONS, _step
from kernbench.validation.reading import read_folder
from kernbench.validation.rows import run_row
from kernbench.validation.table import BRIDGE, OWN, Found

_HEAD = "program,kind,name,input_shapes,calls_a_step,device_us_a_step,host_us_a_step"
_ROWS = (
    'lm bert 16 512 False,op,aten::gelu,"[[16, 512, 4096], []]",24.0,1111.7,300',
    'vision resnet50 64 bfloat16,op,aten::convolution_backward,"[[4, 8, 28, 28], [4, 16, 56, 56], '
    '[8, 16, 3, 3], []]",1.0,9,9',
    'lm bert 16 512 False,op,aten::sum,"[[16, 512], [], [], []]",1.0,2,9',
    "lm bert 16 512 False,kernel,nvjet_sm90,,1.0,2,",
    'unet 16 64,op,aten::silu,"[[16, 128, 64, 64]]",1.0,9,9',
    'vision resnet50 64 bfloat16,op,aten::convolution_backward,"[[4, 8, 30, 30], [4, 16, 56, 56], '
    '[8, 16, 3, 3], []]",1.0,9,9',
    'other 1,op,aten::mm,"[[16, 16], [16, 16]]",1.0,9,9',
)


@pytest.mark.parametrize(
    ("extent", "window", "out", "found"),
    [
        (224, 7, 112, (2, 3)),
        (56, 3, 56, (1, 1)),
        (56, 1, 28, (2, 0)),
        (56, 2, 28, (2, 0)),
        (55, 3, 27, (2, 0)),  # 55 + 2 - 3 by 2, and one: 28
        (56, 3, 30, None),
    ],
)
def test_stride_and_padding_follow_from_extents(
    extent: int, window: int, out: int, found: tuple[int, int] | None
) -> None:
    assert _step(extent, window, out) == found


def test_what_shapes_do_not_tell_is_named_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "programs3_ops.csv").write_text("\n".join([_HEAD, *_ROWS, ""]))
    lines = read_folder(tmp_path).lines
    assert [OPERATIONS.refused(line.row) for line in lines] == [
        "",
        "",
        "sum: shapes alone do not say what it does",
        "a kernel of the library, whose operands no row says",
        "silu: its type depends on the norm before it",
        "convolution_backward: shapes alone do not say its padding",
        "program 'other 1' is not known",
    ]
    assert run_row(OPERATIONS, lines[0].row, OWN, "h200x8") == Found(
        missing="an operation of PyTorch"
    )


@pytest.mark.torch
def test_an_operation_takes_the_time_of_its_calls_in_a_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "programs3_ops.csv").write_text("\n".join([_HEAD, *_ROWS[:2], ""]))
    gelu, convolution = read_folder(tmp_path).lines
    found = run_row(OPERATIONS, gelu.row, BRIDGE, "h200x8")
    # Of each of 20 calls 1.3 us of launch, 44 operations an element at 132 x 253 GFLOP/s, and of an
    # event pair of 4.2 us a twentieth.
    each = 1.3 + 44 * 16 * 512 * 4096 / (132 * 253e3) + 4.2 / 20
    assert found.predicted["device_us_a_step"] == pytest.approx(24 * each, rel=1e-4)
    assert run_row(OPERATIONS, convolution.row, BRIDGE, "h200x8").missing == ""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("program", "name", "shapes", "nbytes", "operations"),
    [
        # In place, read and written, 2 bytes each, at 96 % of 4.45 TB/s
        ("vision resnet50 64 bfloat16", "clamp_min_", "[[64, 64, 56, 56]]", 4 / 0.96, 1),
        # BERT's loss is of bfloat16, the others' of float32: 8 bytes at 96 %, or 58 operations
        ("lm bert 16 512 False", "_log_softmax", "[[8192, 2048], [], []]", 4 / 0.96, 58),
        ("lm llama 1 4096 False", "_log_softmax", "[[8192, 2048], [], []]", 8 / 0.96, 58),
    ],
)
def test_types_follow_from_the_program(
    tmp_path: Path, program: str, name: str, shapes: str, nbytes: float, operations: int
) -> None:
    pytest.importorskip("torch")
    row = f'{program},op,aten::{name},"{shapes}",1.0,9,9'
    (tmp_path / "programs3_ops.csv").write_text(f"{_HEAD}\n{row}\n")
    (line,) = read_folder(tmp_path).lines
    count = prod(json.loads(shapes)[0])
    each = 1.3 + count * max(nbytes / 4.45e6, operations / (132 * 253e3)) + 4.2 / 20
    found = run_row(OPERATIONS, line.row, BRIDGE, "h200x8").predicted["device_us_a_step"]
    assert found == pytest.approx(each, rel=1e-4)


@pytest.mark.torch
def test_a_causal_model_sees_half_of_its_keys_and_bert_all(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shapes = "[" + ", ".join(["[1, 16, 4096, 64]"] * 3) + "]"
    rows = [
        f'{program},op,aten::_cudnn_attention_forward,"{shapes}",1.0,9,9'
        for program in ("lm bert 16 512 False", "lm gpt2 4 1024 False")
    ]
    (tmp_path / "programs3_ops.csv").write_text("\n".join([_HEAD, *rows, ""]))
    whole, half = (
        run_row(OPERATIONS, line.row, BRIDGE, "h200x8").predicted["device_us_a_step"]
        for line in read_folder(tmp_path).lines
    )
    assert half < 0.7 * whole
