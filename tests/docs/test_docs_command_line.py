"""The document of the command line says of options what the commands say."""

import docs_command_line
import pytest

from kernbench.cli.option_table import OPTIONS
from kernbench.run_spec.options import Option

TEXT = docs_command_line.DOCUMENT.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_options() -> None:
    """`python tests/docs/docs_command_line.py` writes them."""
    assert docs_command_line.with_tables(TEXT) == TEXT


def test_every_command_has_a_section_and_no_other() -> None:
    assert set(docs_command_line.sections(TEXT)) == set(docs_command_line.commands())


@pytest.mark.parametrize("name", docs_command_line.commands())
def test_the_heading_of_a_command_has_its_arguments(name: str) -> None:
    command = docs_command_line.commands()[name]
    usage = docs_command_line.sections(TEXT)[name][1].replace("-- ", "").split()
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            word = (parameter.metavar or parameter.name).upper()
            assert word in usage or f"[{word}]" in usage
            assert (word in usage) == parameter.required or name in {"run", "sweep"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.commands} {option.name}")
def test_a_help_is_one_sentence_with_what_it_needs(option: Option) -> None:
    assert option.help[0].isupper()
    assert not option.help[1].isupper(), "documents begin it with a small letter"
    assert option.help.endswith(".")
    assert "default: " not in option.help, "`--help` adds it"
    assert option.more[:1] in {"", ".", ",", ":", ";", " "}
    assert not option.more.endswith(".")
