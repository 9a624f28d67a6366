"""Every code of a user's mistake has a test of the full text that the user gets."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

EXPECTED = {
    "C": range(1, 22),
    "P": range(1, 10),
    "R": range(1, 13),
    "K": range(5, 11),
    "F": range(1, 17),
}

TESTS = {
    "C1": "ranks/test_mismatch.py::c1_returned",
    "C2": "ranks/test_mismatch.py::c2_three",
    "C3": "ranks/test_mismatch.py::c3_first",
    "C4": "ranks/test_mismatch.py::c4",
    "C5": "ranks/test_mismatch.py::c5",
    "C6": "distributed/test_refusals.py::c6_dtype",
    "C7": "ranks/test_mismatch.py::c7_differs",
    "C8": "distributed/test_refusals.py::c8",
    "C9": "ranks/test_mismatch.py::c9_lists",
    "C10": "ranks/test_deadlock.py::test_c10_two_groups_in_crossing_order",
    "C11": "ranks/test_mismatch.py::c11",
    "C12": "distributed/test_refusals.py::c12_list",
    "C13": "ranks/test_spawn.py::test_work_that_nobody_waits_for_is_a_leak",
    "C14": "distributed/test_refusals.py::c14",
    "C15": "distributed/test_refusals.py::c15",
    "C17": "distributed/test_refusals.py::c17",
    "C18": "distributed/test_refusals.py::c18_early",
    "C19": "ranks/test_spawn.py::test_a_spawn_inside_a_rank_is_refused",
    "C20": "tensors/test_host_from_kernel.py::test_c20_a_function_of_the_host_inside_a_kernel",
    "C21": "tp/test_tp_parts.py::test_c21_a_norm_of_rows_is_told_in_full",
    "P1": "ranks/test_deadlock.py::test_p1_the_sender_has_returned",
    "P2": "ranks/test_deadlock.py::test_p2_of_a_send_that_was_buffered",
    "P3": "ranks/test_deadlock.py::test_p3_the_tags_differ",
    "P4": "ranks/test_deadlock.py::test_p4_everybody_receives_first",
    "P5": "ranks/test_deadlock.py::test_p5_warns_of_what_only_buffering_hides",
    "P6": "distributed/test_p2p.py::test_p6_to_oneself",
    "P7": "distributed/test_p2p.py::test_p7_the_type_differs",
    "P8": "ranks/test_schedules.py::test_p8_what_a_host_reads_depends_on_the_match",
    "P9": "distributed/test_p2p.py::test_p9_a_rank_that_does_not_exist",
    "R4": "ranks/test_spawn.py::test_an_abort_that_is_swallowed_for_ever_is_reported",
    "R6": "ranks/test_spawn.py::test_a_rank_that_raises_greenlet_exit",
    "R11": "ranks/test_hash_seeds.py::test_r11_ranks_that_iterate_over_a_set",
    "R12": "runtime_api/test_threads.py::test_r12_a_thread_beside_a_rank",
    "K5": "ranks/test_spawn.py::test_code_that_never_yields_is_stopped",
    "K6": "ranks/test_deadlock.py::test_k6_polling_for_what_cannot_happen",
    "K7": "ranks/test_deadlock.py::test_k7_an_algorithm_that_waits_for_itself",
    "K8": "hw/test_hw_queue.py::test_every_slot_is_free_or_holds_a_message",
    "K10": "ranks/test_time_limit.py::test_k10_a_limit_of_simulated_time",
    "K9": "tl/test_tl_mistakes.py::test_k9_a_message_larger_than_a_slot",
    **{
        f"F{number}": "config/test_config_codes.py::test_the_text_of_each_class"
        for number in (*range(1, 11), 12, 13)
    },
    "F11": "config/test_config_codes.py::test_a_file_that_is_not_there",
    "F14": "config/test_config_codes.py::test_a_module_that_is_not_there",
    "F15": "config/test_config_codes.py::test_an_output_folder_that_is_not_there",
    "F16": "config/test_config_codes.py::test_a_key_under_its_old_name",
}
"""By code, a test, or a case of a test, that compares a text which shows the code."""

TOLD_OTHERWISE = {
    # A handle cannot be started again, and a second wait is legal.
    "C16": "tensors/test_host_from_kernel.py::test_c16_a_second_wait_is_legal_and_free",
    # What the user raised keeps its own text; the ranks around it are told in the spawn's.
    "R1": "ranks/test_rank_ends.py::test_r1_siblings_are_aborted_where_they_wait",
    "R2": "ranks/test_rank_ends.py::test_r2_ranks_that_fail_alike_are_told_once",
    "R3": "ranks/test_rank_ends.py::test_r3_an_exit_with_a_number_is_an_error_of_its_rank",
    "R5": "ranks/test_rank_ends.py::test_r5_an_interrupt_is_told_with_the_places_of_all_ranks",
    "R7": "ranks/test_spawn.py::test_a_fault_of_a_kernel_is_raised_at_the_read_that_waits_for_it",
    "R8": "ranks/test_rank_ends.py"
    "::test_r8_a_fault_of_a_kernel_is_that_of_the_rank_that_launched_it",
    "R9": "ranks/test_rank_ends.py::test_r9_nothing_is_left_however_ranks_end",
    "R10": "ranks/test_rank_ends.py::test_r10_an_error_whose_text_fails_is_not_lost",
}
"""By code, the test of a mistake whose text has no code of its own."""


RAISED = re.compile(r'(?:code=|problem\(\s*|Verdict\(\s*|Term\(|_refuse\(\w+, )"([A-Z]\d+)"')
"""How the package gives a code to an error."""


@cache
def _functions(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _find(place: str) -> ast.FunctionDef:
    file, _, name = place.partition("::")
    functions = _functions(file)
    assert name in functions, f"{file} has {', '.join(functions)}"
    return functions[name]


def _constants(part: ast.AST) -> list[str]:
    return [
        node.value
        for node in ast.walk(part)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _compared(place: str) -> list[str]:
    """Returns the constant texts that a test, or that of a case, compares with what it got.

    A name stands for what the test gives it, or, if it is an argument, for all of its decorators.
    """
    function = _find(place)
    if not function.name.startswith("test_"):
        whole = ast.unparse(_find(f"{place.partition('::')[0]}::test_every_rank_is_told_in_full"))
        assert "assert case.found(kernbench) == case.expected()" in whole
        assert any("CASES" in ast.dump(part) for part in function.decorator_list)
        return [text for part in function.decorator_list for text in _constants(part)]
    given = {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    texts = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq):
            continue
        texts += _constants(node)
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and name.id in given:
                texts += _constants(given[name.id])
            elif isinstance(name, ast.Name) and name.id in {a.arg for a in function.args.args}:
                texts += [text for part in function.decorator_list for text in _constants(part)]
    return texts


def test_every_code_has_its_test() -> None:
    codes = {f"{letter}{number}" for letter, numbers in EXPECTED.items() for number in numbers}
    assert TESTS.keys() | TOLD_OTHERWISE.keys() == codes
    assert not TESTS.keys() & TOLD_OTHERWISE.keys()


@pytest.mark.parametrize("code", TESTS)
def test_the_test_of_a_code_compares_a_text_that_shows_it(code: str) -> None:
    shown = re.compile(rf"^([\w ]+: )?\[{code}\] | \[{code}\]$", re.MULTILINE)
    assert any(shown.search(text) for text in _compared(TESTS[code])), "no text shows the code"


@pytest.mark.parametrize("code", TOLD_OTHERWISE)
def test_the_test_of_a_mistake_without_a_code_is_there(code: str) -> None:
    assert _find(TOLD_OTHERWISE[code])


def test_no_code_is_raised_that_is_not_in_a_text_of_a_test() -> None:
    raised = set()
    for path in (ROOT / "kernbench").rglob("*.py"):
        raised |= set(RAISED.findall(path.read_text(encoding="utf-8")))
    assert len(raised) > 40
    tested = {
        code
        for path in (ROOT / "tests").rglob("*.py")
        for code in re.findall(r"\[([A-Z]\d+)\]", path.read_text(encoding="utf-8"))
    }
    assert sorted(raised - tested) == []
