"""What the text of Triton's IR says, and texts that say nothing."""

import pytest
from ttir_texts import kept, kernel

from kernbench.ttir.module import Site, within
from kernbench.ttir.reader import read
from kernbench.ttir.roots import roots_of
from kernbench.ttir.tokens import TextError
from kernbench.ttir.types import Descriptor, Pointer, Type


def test_functions_types_and_names_of_a_kernel() -> None:
    module = read(kept("tiles"))

    kernel_ = module.kernel
    assert kernel_.name == "tiles"
    assert [(value.name, value.type) for value in kernel_.arguments] == [
        ("source", Type(Pointer(Type("f32")))),
        ("target", Type(Pointer(Type("f32")))),
        ("M", Type("i32")),
        ("N", Type("i32")),
    ]
    made = [each for each in within(kernel_.body) if each.name == "tt.make_tensor_descriptor"]
    assert [each.results[0].type for each in made] == [
        Type(Descriptor(Type("f32", (8, 16)))),
        Type(Descriptor(Type("f32", (16, 8)))),
    ]


def test_a_function_that_is_not_inlined_is_a_second_one() -> None:
    module = read(kept("calls"))

    assert sorted(module.functions) == ["calls", "kernels._helper__fp32_fp32"]
    assert module.kernel.name == "calls"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('"a.py":3:7', [Site("a.py", 3, 7)]),
        ('"a.py":3:7 to 4:2', [Site("a.py", 3, 7)]),
        ('"x"("a.py":3:7)', [Site("a.py", 3, 7)]),
        ("#loc1", [Site("b.py", 9, 1)]),
        ('callsite("a.py":1:2 at #loc1)', [Site("a.py", 1, 2), Site("b.py", 9, 1)]),
        (
            'callsite("a.py":1:2 at callsite("c.py":5:6 at #loc1))',
            [Site("a.py", 1, 2), Site("c.py", 5, 6), Site("b.py", 9, 1)],
        ),
        ('fused["a.py":1:2, #loc1]', [Site("a.py", 1, 2)]),
        ('fused<"why">["a.py":1:2, #loc1]', [Site("a.py", 1, 2)]),
        (r'"/\C3\A9t\C3\A9 \22x\22\\y.py":1:2', [Site('/été "x"\\y.py', 1, 2)]),
        ("unknown", []),
        ("#loc7", []),
        ('"only a name"', []),
        ("", []),
    ],
)
def test_places_in_every_form(said: str, expected: list[Site]) -> None:
    text = kernel("%x: i32", f"%y = arith.addi %x, %x : i32 loc({said})")

    module = read(text + '#loc1 = loc("b.py":9:1)\n')

    assert list(next(within(module.kernel.body)).sites) == expected


def test_attributes_in_every_form() -> None:
    text = kernel(
        "%x: i32",
        '%y = tt.odd %x {a = 3 : i32, b = -1.5 : f32, c = true, d, e = "a\\22b", '
        "f = array<i32: 1, 0>, g = #tt.way<x = y>, h = [1, 2]} : i32 -> i32",
    )

    (operation, _) = within(read(text).kernel.body)

    assert operation.attributes == {
        "a": 3,
        "b": -1.5,
        "c": True,
        "d": True,
        "e": 'a"b',
        "f": (1, 0),
        "g": "#tt.way < x = y >",
        "h": "[ 1 , 2 ]",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("module {\n}\n", "the text has 0 public functions"),
        ("", "the text has 0 public functions"),
        (kernel("", "") * 2, "the text has 1 public"),
        (kernel("", "%y = arith.addi %x, %x : i32"), "line 3 .* %x has not been defined"),
        (kernel("%x: i31", ""), "line 2 .* the type 'i31' is not known"),
        (kernel("%x: !tt.ptr<f32", ""), "expected"),
        (kernel("%x: i32", "%y:2 = arith.addi %x, %x : i32"), "has 2 results and 1 types"),
        (kernel("%x: i32", "%y arith.addi %x, %x : i32"), "'=' was expected"),
        (kernel("%x: i32", "scf.if %x {\nscf.if %x {"), "the text ends inside of a region"),
        (kernel("%x: i32", "tt.odd ; %x"), "line 3 of the text is no IR of Triton"),
    ],
)
def test_texts_that_are_no_ir_are_refused(text: str, said: str) -> None:
    if text.count("@kernel") == 2:
        text = text.replace("@kernel", "@other", 1).replace("public", "private", 1)
        assert read(text).kernel.name == "kernel"
        return
    with pytest.raises(TextError, match=said):
        read(text)


def test_memory_spaces_of_types_are_passed_over_and_signs_are_those_of_descriptors() -> None:
    text = kernel(
        "%p: !tt.ptr<f32, 1>, %d: !tt.tensordesc<tensor<4xsi8>>, %e: !tt.tensordesc<4x8xui16>, "
        "%t: tensor<4x!tt.ptr<f16>, #blocked<a = [1]>>",
        "",
    )

    assert [value.type for value in read(text).kernel.arguments] == [
        Type(Pointer(Type("f32"))),
        Type(Descriptor(Type("i8", (4,)))),
        Type(Descriptor(Type("i16", (4, 8)), unsigned=True)),
        Type(Pointer(Type("f16")), (4,)),
    ]


def test_pointers_are_followed_to_the_arguments() -> None:
    text = kernel(
        "%a: !tt.ptr<f32>, %b: !tt.ptr<f32>, %t: !tt.ptr<i64>, %c: i1, %n: i32",
        """
    %moved = tt.addptr %a, %n : !tt.ptr<f32>, i32
    %either = arith.select %c, %a, %b : !tt.ptr<f32>
    %same = scf.if %c -> (!tt.ptr<f32>) {
      scf.yield %a : !tt.ptr<f32>
    } else {
      scf.yield %moved : !tt.ptr<f32>
    }
    %kept:2 = scf.for %i = %n to %n step %n iter_args(%p = %a, %q = %b) -> TWO : i32 {
      %r = tt.addptr %p, %n : !tt.ptr<f32>, i32
      scf.yield %r, %p : !tt.ptr<f32>, !tt.ptr<f32>
    } {tt.warp_specialize}
    %turned = scf.while (%p = %a) : (!tt.ptr<f32>) -> !tt.ptr<f32> {
      scf.condition(%c) %p : !tt.ptr<f32>
    } do {
    ^bb0(%p: !tt.ptr<f32>):
      scf.yield %b : !tt.ptr<f32>
    } attributes {unroll = 1 : i32}
    %number = tt.load %t : !tt.ptr<i64>
    %loaded = tt.int_to_ptr %number : i64 -> !tt.ptr<f32>""".replace(
            "TWO", "(!tt.ptr<f32>, !tt.ptr<f32>)"
        ),
    )
    kernel_ = read(text).kernel

    named = {
        value.name: value.number for each in kernel_.body[0].operations for value in each.results
    }
    roots = roots_of(kernel_)

    assert {name: roots.get(number) for name, number in named.items()} == {
        "moved": 0,
        "either": None,
        "same": 0,
        "kept": None,
        "turned": None,
        "number": None,
        "loaded": None,
    }
