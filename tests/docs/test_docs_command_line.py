"""The document of the command line says of options what the commands say."""

import docs_command_line
import pytest

from kernbench.cli.option_table import OPTIONS
from kernbench.run_spec.options import Option


def test_the_tables_are_those_of_the_options() -> None:
    """`python tests/docs/docs_command_line.py` writes them."""
    text = docs_command_line.DOCUMENT.read_text(encoding="utf-8")
    assert docs_command_line.with_tables(text) == text


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.commands} {option.name}")
def test_a_help_is_one_sentence_with_what_it_needs(option: Option) -> None:
    assert option.help[0].isupper()
    assert not option.help[1].isupper(), "documents begin it with a small letter"
    assert option.help.endswith(".")
    assert "default: " not in option.help, "`--help` adds it"
    assert option.more[:1] in {"", ".", ",", ":", ";", " "}
    assert not option.more.endswith(".")
