"""Records as JSON lines: the content of golden traces, and what replays compare."""

import json
from collections.abc import Iterator

from kernbench.report.records import Sites, full_records, in_order, plain
from kernbench.sim_engine.op_log import OpLog


def dump_records(op_log: OpLog) -> Iterator[str]:
    """Yields a line of JSON per record, without line ends.

    The same run gives the same lines, byte for byte, whatever the order of set-up and wherever the
    source lies: call sites are written without folders, and flows are numbered anew.

    Raises:
        UsageError: If the log has no records.
    """
    sites = Sites()
    for entry in in_order(full_records(op_log, "a dump")):
        record = entry.record
        yield json.dumps(
            {
                "start_ps": record.start,
                "end_ps": record.end,
                "issued_ps": record.issued,
                "rank": record.rank,
                "track": record.track,
                "category": record.category,
                "name": record.name,
                "site": sites.short(record.site),
                "args": dict(sorted(record.args.items())),
                "flow": entry.arrow,
            },
            default=plain,
        )
