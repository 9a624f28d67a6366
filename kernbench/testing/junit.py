"""What the JUnit file of pytest says of tests with cases."""

from xml.etree import ElementTree

import pytest

from kernbench.testing import internals


def add_standard_error(config: pytest.Config, report: pytest.TestReport) -> None:
    """Writes the captured standard error of a test with cases to the JUnit file.

    It holds retries, and the last words of processes. Pytest writes it with `junit_logging` alone.

    Args:
        config: The configuration of pytest.
        report: Report of the call of a test.
    """
    if "junit" in internals.LOST:
        return
    xml = config.stash.get(internals.xml_key, None)
    if xml is None or not report.capstderr or not _is_ours(report):
        return
    if xml.logging not in {"system-err", "out-err", "all"}:
        element = ElementTree.Element("system-err")
        element.text = internals.bin_xml_escape(report.capstderr)
        xml.node_reporter(report).append(element)


def _is_ours(report: pytest.TestReport) -> bool:
    return any(name.startswith("kb_") for name, _ in report.user_properties)
