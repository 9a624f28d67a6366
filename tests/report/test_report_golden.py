"""Records as lines: the same whatever the order of set-up."""

import json
import random

import numpy as np
import pytest

from kernbench.errors import UsageError, call_site
from kernbench.report import dump_records
from kernbench.sim_engine.op_log import OpLog, Record

SITE = call_site()


def test_a_line_says_all() -> None:
    log = OpLog("full")
    args = {"links": ["a->b"], "bytes": np.int64(8)}
    log.add(Record("send to 1", "send", 0, "dma.send", 1, 2, 3, SITE, args, 7))
    log.add(
        Record("recv from 0", "recv", 1, "dma.recv", 1, 3, 4, None, {"dtype": np.dtype("i4")}, 7)
    )
    assert SITE is not None
    assert [json.loads(line) for line in dump_records(log)] == [
        {
            "start_ps": 2,
            "end_ps": 3,
            "issued_ps": 1,
            "rank": 0,
            "track": "dma.send",
            "category": "send",
            "name": "send to 1",
            "site": f"test_report_golden.py:{SITE.line}",
            "args": {"bytes": 8, "links": ["a->b"]},
            "flow": 1,
        },
        {
            "start_ps": 3,
            "end_ps": 4,
            "issued_ps": 1,
            "rank": 1,
            "track": "dma.recv",
            "category": "recv",
            "name": "recv from 0",
            "site": "",
            "args": {"dtype": "int32"},
            "flow": 1,
        },
    ]


def test_the_order_of_set_up_does_not_show() -> None:
    """Twins differ in arguments or in their receivers alone; flows come in any order."""
    pairs = [(rank, size, late) for rank in (0, 1) for size in (8, 8, 16) for late in (0, 5)]
    dumps = set()
    for seed in range(20):
        rng = random.Random(seed)
        rng.shuffle(pairs)
        log = OpLog("full")
        for rank, size, late in pairs:
            flow = log.new_flow()
            args = {"bytes": size}
            log.add(Record("send", "send", rank, "dma.send", 0, 0, 4, None, args, flow))
            log.add(Record("recv", "recv", 1 - rank, "dma.recv", 0, 9, 9 + late, None, {}, flow))
        rng.shuffle(log.records)
        dumps.add("\n".join(dump_records(log)))
    assert len(dumps) == 1


def test_a_flow_without_its_other_end_is_none() -> None:
    log = OpLog("full")
    log.add(Record("recv", "recv", 0, "dma.recv", 0, 1, 2, None, {}, 3))
    log.add(Record("send", "send", 0, "dma.send", 0, 1, 2, None, {}, 4))
    log.add(Record("send", "send", 0, "dma.send", 0, 2, 3, None, {}, 4))
    assert [json.loads(line)["flow"] for line in dump_records(log)] == [0, 0, 0]


def test_a_log_without_records_is_refused() -> None:
    with pytest.raises(UsageError, match="a dump needs every record"):
        list(dump_records(OpLog("none")))
