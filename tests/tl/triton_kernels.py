"""Small kernels, and whether Triton 3.9 compiles them. Each has `x`, `h`, `n`, `f` and `B`."""
# mypy: ignore-errors
# ruff: noqa

import math
from collections import namedtuple

from kernbench import tl

ACCEPTED, REFUSED = [], {}
"""Kernels that Triton compiles; kernels that it refuses, with a part of what kernbench says."""


def accepted(function):
    ACCEPTED.append(function)
    return function


def refused(says):
    def keep(function):
        REFUSED[function] = says
        return function

    return keep


PLAIN = 4
NUMBERS = [1, 2]
MARKED = tl.constexpr(16)
HALF = tl.constexpr(0.5)
DTYPE = tl.float16
NOTHING = None
Pair = namedtuple("Pair", "a b")


@tl.jit
def twice(v):
    return v * 2


@tl.jit
def lanes_of(count: tl.constexpr):
    return tl.arange(0, count)


@tl.jit
def two_types(n):
    if n > 2:
        return 1
    return 2.0


@tl.jit
def endless(n):
    return endless(n)


@tl.jit
def power(v, exponent: tl.constexpr):
    if exponent == 0:
        return v
    else:
        return power(v * v, exponent - 1)


@tl.jit
def power_without_else(v, exponent: tl.constexpr):
    if exponent == 0:
        return v
    return power_without_else(v * v, exponent - 1)


@tl.jit
def pair_of(v, by=2.0):
    return v, v * by


@tl.jit
def nothing(p):
    tl.store(p, 1.0)


def undecorated(v):
    return v * 2


# What is accepted


@accepted
def masked_add(x, h, n, f, B: tl.constexpr):
    """A docstring."""
    offs = tl.program_id(0) * B + tl.arange(0, B)
    mask = offs < n
    tl.store(x + offs, tl.load(x + offs, mask=mask) + f, mask=mask)


@accepted
def marked_local(x, h, n, f, B: tl.constexpr):
    b: tl.constexpr = 64
    tl.store(x + tl.arange(0, b), 1.0)


@accepted
def marked_later(x, h, n, f, B: tl.constexpr):
    b: tl.constexpr
    b = B * 2
    tl.store(x + tl.arange(0, b), 1.0)


@accepted
def marked_global(x, h, n, f, B: tl.constexpr):
    tl.store(x + tl.arange(0, MARKED), HALF * 1.0)


@accepted
def dtype_and_none_globals(x, h, n, f, B: tl.constexpr):
    if NOTHING is None:
        tl.store(h, tl.zeros((), DTYPE))


@accepted
def module_global(x, h, n, f, B: tl.constexpr):
    tl.store(x, math.log(2) * math.pi)


@accepted
def early_return(x, h, n, f, B: tl.constexpr):
    if n > 3:
        return
    tl.store(x, 1.0)


@accepted
def constant_branch(x, h, n, f, B: tl.constexpr):
    if B > 8:
        a = 1.0
    else:
        a = {}
    tl.store(x, a)


@accepted
def refused_part_after_return(x, h, n, f, B: tl.constexpr):
    tl.store(x, 1.0)
    return
    a = {}


@accepted
def text_comparison(x, h, n, f, B: tl.constexpr):
    mode: tl.constexpr = "a"
    if mode == "a":
        tl.store(x, 1.0)


@accepted
def print_named(x, h, n, f, B: tl.constexpr):
    print("n", n)


@accepted
def condition_on_pointer(x, h, n, f, B: tl.constexpr):
    if x:
        tl.store(x, 1.0)


@accepted
def chained(x, h, n, f, B: tl.constexpr):
    if 0 < n < 5:
        tl.store(x, 1.0)


@accepted
def truth_of_scalars(x, h, n, f, B: tl.constexpr):
    if n > 2 and f > 1.0 or not (n == 7):
        tl.store(x, 1.0)


@accepted
def constants_first(x, h, n, f, B: tl.constexpr):
    if B == 3 and PLAIN:
        tl.store(x, 1.0)


@accepted
def whole_of_constant(x, h, n, f, B: tl.constexpr):
    tl.store(x, int(B / 2) + float(B) + len((1, 2)))


@accepted
def listed(x, h, n, f, B: tl.constexpr):
    s = [i * 2.0 for i in (1, 2, 3)]
    tl.store(x, s[0])


@accepted
def loop_index_stays(x, h, n, f, B: tl.constexpr):
    for i in range(n):
        y = 1.0
    tl.store(x, i)


@accepted
def none_value(x, h, n, f, B: tl.constexpr):
    y = None
    if y is None:
        tl.store(x, 1.0)


@accepted
def unpacked(x, h, n, f, B: tl.constexpr):
    a, b = 1, 2.0
    a, b = b, a
    tl.store(x, a + b)


@accepted
def moving_pointer(x, h, n, f, B: tl.constexpr):
    for i in range(0, n, B):
        x += B
    tl.store(x, 1.0)


@accepted
def asserted(x, h, n, f, B: tl.constexpr):
    assert n > 2
    tl.static_assert(B > 2, "too small")


@accepted
def returns_number(x, h, n, f, B: tl.constexpr):
    tl.store(x, 1.0)
    return 5


@accepted
def odd_start(x, h, n, f, B: tl.constexpr):
    tl.store(x + tl.arange(5, 5 + B), 1.0)
    tl.store(x + tl.arange(0, 1), 1.0)


@accepted
def walrus(x, h, n, f, B: tl.constexpr):
    if (m := n + 1) > 2:
        tl.store(x, m)


@accepted
def helper_call(x, h, n, f, B: tl.constexpr):
    tl.store(x + lanes_of(B), twice(tl.load(x + lanes_of(B))))


@accepted
def constant_recursion(x, h, n, f, B: tl.constexpr):
    tl.store(x, power(f, 3))


@accepted
def unrolled(x, h, n, f, B: tl.constexpr):
    for i in tl.static_range(3):
        tl.store(x + tl.arange(0, 1 << i), 1.0)


@accepted
def unrolled_return(x, h, n, f, B: tl.constexpr):
    for i in tl.static_range(1):
        tl.store(x, 1.0)
        if n > 4:
            return


@accepted
def accumulation(x, h, n, f, B: tl.constexpr):
    acc = tl.zeros((B,), tl.float32)
    for start in tl.range(0, n, B):
        acc += tl.load(h + start + tl.arange(0, B))
    tl.store(x + tl.arange(0, B), acc)


@accepted
def float_accumulation(x, h, n, f, B: tl.constexpr):
    acc = 0.0
    for i in range(n):
        acc += tl.load(x + i)
    tl.store(x, acc)


@accepted
def while_loop(x, h, n, f, B: tl.constexpr):
    i = 0
    while i < n:
        i += 1
    tl.store(x, i)


@accepted
def both_branches(x, h, n, f, B: tl.constexpr):
    if n > 2:
        a = tl.zeros((B,), tl.float32)
    else:
        a = tl.full((B,), 1.0, tl.float32)
    tl.store(x + tl.arange(0, B), a)


@accepted
def nested_loops(x, h, n, f, B: tl.constexpr):
    best = tl.zeros((B,), tl.float32)
    for i in range(n):
        for j in range(i):
            if j > 2:
                best = tl.maximum(best, tl.load(x + j + tl.arange(0, B)))
    tl.store(x + tl.arange(0, B), best)


@accepted
def product(x, h, n, f, B: tl.constexpr):
    lanes = tl.arange(0, B)
    a = tl.load(h + lanes[:, None] * B + lanes[None, :])
    tl.store(x + lanes[:, None] * B + lanes[None, :], tl.dot(a, a))


@accepted
def product_of_few_rows(x, h, n, f, B: tl.constexpr):
    tl.dot(tl.zeros((1, 16), tl.float16), tl.zeros((16, 2), tl.float16))


@accepted
def product_fp32_of_depth_8(x, h, n, f, B: tl.constexpr):
    tl.dot(tl.zeros((16, 8), tl.float32), tl.zeros((8, 16), tl.float32))


@accepted
def scalar_max(x, h, n, f, B: tl.constexpr):
    tl.store(x, max(n, 3) + min(B, 3))


@accepted
def conditional_value(x, h, n, f, B: tl.constexpr):
    tl.store(x, 1.0 if n > 2 else 2.0)


@accepted
def largest_tile(x, h, n, f, B: tl.constexpr):
    a = tl.zeros((1024, 1024), tl.float32)


@accepted
def wide_index(x, h, n, f, B: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * n
    at += 1
    tl.store(x + at, 1.0)


@accepted
def starred_call(x, h, n, f, B: tl.constexpr):
    bounds: tl.constexpr = (0, 16)
    tl.store(x + tl.arange(*bounds), 1.0)


@accepted
def shape_of_a_tile(x, h, n, f, B: tl.constexpr):
    a = tl.zeros((B, 2), tl.float32)
    tl.store(x + tl.arange(0, a.shape[0]), tl.sum(a, 1))


@accepted
def type_of_a_tile(x, h, n, f, B: tl.constexpr):
    a = tl.load(h)
    tl.store(h, (a + 1.0).to(a.dtype))


@accepted
def truth_of_tiles(x, h, n, f, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(x + o, 1.0, mask=(o < n) and not (o > 2))


@accepted
def helper_of_a_pair(x, h, n, f, B: tl.constexpr):
    a, b = pair_of(f, by=3.0)
    nothing(x)
    tl.store(x + 1, a + b)


@accepted
def index_changes(x, h, n, f, B: tl.constexpr):
    for i in range(n):
        i = i + 1
        tl.store(x + i, 1.0)


@accepted
def index_had_another_type(x, h, n, f, B: tl.constexpr):
    i = 1.0
    for i in range(n):
        tl.store(x + i, 1.0)


@accepted
def backwards(x, h, n, f, B: tl.constexpr):
    for i in range(n, 0, -1):
        tl.store(x + i, 1.0)


@accepted
def bounds_of_tiles(x, h, n, f, B: tl.constexpr):
    for i in range(tl.program_id(0), n.to(tl.int64), tl.num_programs(0)):
        tl.store(x + i, 1.0)


@accepted
def unrolled_type(x, h, n, f, B: tl.constexpr):
    a = 0
    for i in tl.static_range(2):
        a += 1.0
    tl.store(x, a)


@accepted
def swapped(x, h, n, f, B: tl.constexpr):
    a, b = 1.0, 2.0
    for i in range(n):
        a, b = b, a
    tl.store(x, a)


@accepted
def carried_by_one_branch(x, h, n, f, B: tl.constexpr):
    a = 0.0
    for i in range(n):
        if i > 2:
            a = 1.0
        else:
            tl.store(x, a)
    tl.store(x, a)


@accepted
def constants_by_or(x, h, n, f, B: tl.constexpr):
    tl.store(x + tl.arange(0, 0 or 16), 1 << 3)
    if not B:
        tl.store(x, 5 // 2)


@accepted
def entry_of_a_list(x, h, n, f, B: tl.constexpr):
    tl.store(x, [1.0, 2.0][1])


@accepted
def constant_side(x, h, n, f, B: tl.constexpr):
    tl.store(x, 1.0 if B > 3 else {})


@accepted
def condition_is_none(x, h, n, f, B: tl.constexpr):
    if NOTHING:
        tl.store(x, 1.0)
    if x is not None:
        tl.store(x, 1.0)


@accepted
def one_lane_condition(x, h, n, f, B: tl.constexpr):
    if tl.arange(0, 1) < n:
        tl.store(x, 1.0)


@accepted
def inner_loop_in_a_branch(x, h, n, f, B: tl.constexpr):
    a = 0
    if n > 2:
        for i in range(n):
            a += i
    tl.store(x, a)


@accepted
def pass_and_ellipsis(x, h, n, f, B: tl.constexpr):
    if n > 2:
        pass
    ...


@accepted
def text_of_constants(x, h, n, f, B: tl.constexpr):
    tl.static_assert(B > 2, f"B is {B}")


@accepted
def integers_only(x, h, n, f, B: tl.constexpr):
    half = n // 2
    for i in range(n):
        half = half + i % 3
    tl.store(x, half)


@accepted
def offsets_carried(x, h, n, f, B: tl.constexpr):
    o = tl.arange(0, B)
    for i in range(n):
        o += B
    tl.store(x + o, 1.0)


@accepted
def wide_product_carried(x, h, n, f, B: tl.constexpr):
    acc = tl.zeros((B, B), dtype=tl.float32)
    lanes = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    for k in range(0, n, B):
        acc = tl.dot(tl.load(h + lanes), tl.load(h + lanes), acc)
    tl.store(x + lanes, acc)


@accepted
def running_maximum(x, h, n, f, B: tl.constexpr):
    best = tl.full((B,), float("-inf"), tl.float32)
    total = tl.zeros((B,), tl.float32)
    for i in range(n):
        row = tl.load(x + i * B + tl.arange(0, B), mask=tl.arange(0, B) < n, other=0.0)
        new = tl.maximum(best, row)
        total = total * tl.exp(best - new) + tl.exp(row - new)
        best = new
    tl.store(x, tl.sum(total, axis=0))


@tl.jit
def leaky(v):
    return tl.where(v >= 0, v, 0.01 * v)


@accepted
def grouped_product(x, h, n, f, B: tl.constexpr):
    """As in Triton's tutorial on products of matrices."""
    activation: tl.constexpr = "leaky"
    group: tl.constexpr = 8
    pid = tl.program_id(axis=0)
    num_m, num_n = tl.cdiv(n, B), tl.cdiv(n, B)
    in_group = group * num_n
    first = pid // in_group * group
    size = min(num_m - first, group)
    pid_m = first + ((pid % in_group) % size)
    pid_n = (pid % in_group) // size
    rows = (pid_m * B + tl.arange(0, B)) % n
    columns = (pid_n * B + tl.arange(0, B)) % n
    inner = tl.arange(0, B)
    a = h + (rows[:, None] * n + inner[None, :])
    b = h + (inner[:, None] * n + columns[None, :])
    accumulator = tl.zeros((B, B), dtype=tl.float32)
    for k in range(0, tl.cdiv(n, B)):
        left = tl.load(a, mask=inner[None, :] < n - k * B, other=0.0)
        right = tl.load(b, mask=inner[:, None] < n - k * B, other=0.0)
        accumulator = tl.dot(left, right, accumulator)
        a += B
        b += B * n
    if activation == "leaky":
        accumulator = leaky(accumulator)
    c = accumulator.to(tl.float16)
    mask = (rows[:, None] < n) & (columns[None, :] < n)
    tl.store(h + rows[:, None] * n + columns[None, :], c, mask=mask)


@accepted
def rows_of_a_softmax(x, h, n, f, B: tl.constexpr):
    """As in Triton's tutorial on the fused softmax."""
    for row in tl.range(tl.program_id(0), n, tl.num_programs(0), num_stages=2):
        start = x + row * B
        columns = tl.arange(0, B)
        mask = columns < n
        values = tl.load(start + columns, mask=mask, other=-float("inf"))
        shifted = values - tl.max(values, axis=0)
        top = tl.exp(shifted)
        tl.store(start + columns, top / tl.sum(top, axis=0), mask=mask)


@accepted
def layer_norm(x, h, n, f, B: tl.constexpr):
    """As in Triton's tutorial on layer normalisation."""
    row = tl.program_id(0)
    h += row * n
    mean = 0
    total = tl.zeros([B], dtype=tl.float32)
    for off in range(0, n, B):
        columns = off + tl.arange(0, B)
        a = tl.load(h + columns, mask=columns < n, other=0.0).to(tl.float32)
        total += a
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([B], dtype=tl.float32)
    for off in range(0, n, B):
        columns = off + tl.arange(0, B)
        a = tl.load(h + columns, mask=columns < n, other=0.0).to(tl.float32)
        a = tl.where(columns < n, a - mean, 0.0)
        squares += a * a
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + f)
    tl.store(x + row, mean * scale)


# What is refused


@refused("power_without_else calls itself")
def endless_constants(x, h, n, f, B: tl.constexpr):
    tl.store(x, power_without_else(f, 3))


@refused("the bounds of tl.arange are constants")
def constant_made_variable(x, h, n, f, B: tl.constexpr):
    B = B * 2
    tl.store(x + tl.arange(0, B), 1.0)


@refused("the bounds of tl.arange are constants")
def constant_made_variable_by_plus(x, h, n, f, B: tl.constexpr):
    b: tl.constexpr = 8
    b += 8
    tl.store(x + tl.arange(0, b), 1.0)


@refused("a is float32[] before and becomes int32[] in this loop")
def swapped_types(x, h, n, f, B: tl.constexpr):
    a, b = 1.0, 2
    for i in range(n):
        a, b = b, a
    tl.store(x, a)


@refused("p is pointer to float32[] before and becomes pointer to float32[16] in a branch")
def pointer_changes_shape(x, h, n, f, B: tl.constexpr):
    p = x
    if n > 2:
        p = x + tl.arange(0, B)
    tl.store(p, 1.0)


@refused("p is pointer to float32[] before and becomes pointer to float16[] in this loop")
def pointer_changes_type(x, h, n, f, B: tl.constexpr):
    p = x
    for i in range(n):
        p = h


@refused("a is int32[] before and becomes int64[] in this loop")
def carried_width(x, h, n, f, B: tl.constexpr):
    a = 0
    for i in range(n):
        a += tl.program_id(0).to(tl.int64)


@refused("a condition is a bool, an int or None; got a tuple")
def condition_on_a_pair(x, h, n, f, B: tl.constexpr):
    if (1, 2):
        tl.store(x, 1.0)


@refused("mask is bool[16] before and becomes int32[16] in this loop")
def carried_mask(x, h, n, f, B: tl.constexpr):
    mask = tl.arange(0, B) < n
    for i in range(n):
        mask = tl.arange(0, B)


@refused("acc is float32[16, 16] before and becomes float32[16] in this loop")
def carried_rank(x, h, n, f, B: tl.constexpr):
    acc = tl.zeros((B, B), tl.float32)
    for i in range(n):
        acc = tl.sum(acc, axis=1)


@refused("del inside of a kernel")
def deletes_in_a_branch_never_taken(x, h, n, f, B: tl.constexpr):
    if n < 0:
        a = 1
        del a


@refused("with inside of a kernel")
def with_a_file(x, h, n, f, B: tl.constexpr):
    with open("name") as file:
        tl.store(x, 1.0)


@refused("a dict inside of a kernel")
def refused_after_constant_return(x, h, n, f, B: tl.constexpr):
    if B == 16:
        return
    a = {}


@refused("the bounds of tl.arange are constants")
def local_bound(x, h, n, f, B: tl.constexpr):
    b = 64
    tl.store(x + tl.arange(0, b), 1.0)


@refused("the bounds of tl.arange are constants")
def argument_bound(x, h, n, f, B: tl.constexpr):
    tl.store(x + tl.arange(0, n), 1.0)


@refused("the bounds of tl.arange are constants")
def index_bound(x, h, n, f, B: tl.constexpr):
    for i in range(1, 4):
        tl.store(x + tl.arange(0, i), 1.0)


@refused("tl.arange(0, 12) has 12 numbers")
def twelve(x, h, n, f, B: tl.constexpr):
    tl.store(x + tl.arange(0, 12), 1.0)


@refused("must be above the start")
def empty(x, h, n, f, B: tl.constexpr):
    tl.store(x + tl.arange(0, B - B), 1.0)


@refused("must lie in 0..")
def negative(x, h, n, f, B: tl.constexpr):
    tl.store(x + tl.arange(-8, 8), 1.0)


@refused("an extent of 3")
def three_rows(x, h, n, f, B: tl.constexpr):
    a = tl.zeros((3, 4), tl.float32)


@refused("the extents of a shape are constants")
def local_shape(x, h, n, f, B: tl.constexpr):
    s = (B, B)
    a = tl.zeros(s, tl.float32)


@refused("more than 1048576")
def too_large(x, h, n, f, B: tl.constexpr):
    a = tl.zeros((2048, 1024), tl.float32)


@refused("more than 1048576")
def too_large_by_broadcast(x, h, n, f, B: tl.constexpr):
    a = tl.arange(0, 2048)[:, None] + tl.arange(0, 1024)[None, :]


@refused("k is 8, and at least 16")
def shallow_half(x, h, n, f, B: tl.constexpr):
    tl.dot(tl.zeros((16, 8), tl.float16), tl.zeros((8, 16), tl.float16))


@refused("k is 4, and at least 8")
def shallow_float(x, h, n, f, B: tl.constexpr):
    tl.dot(tl.zeros((16, 4), tl.float32), tl.zeros((4, 16), tl.float32))


@refused("k is 16, and at least 32")
def shallow_int8(x, h, n, f, B: tl.constexpr):
    tl.dot(tl.zeros((16, 16), tl.int8), tl.zeros((16, 16), tl.int8))


@refused("PLAIN is a global that is not marked")
def plain_global(x, h, n, f, B: tl.constexpr):
    tl.store(x + PLAIN, 1.0)


@refused("NUMBERS is a global that is not marked")
def list_global(x, h, n, f, B: tl.constexpr):
    tl.store(x, NUMBERS[0])


@refused("undecorated is a function without @tl.jit")
def plain_function(x, h, n, f, B: tl.constexpr):
    tl.store(x, undecorated(f))


@refused("Python's sum is not known")
def python_sum(x, h, n, f, B: tl.constexpr):
    tl.store(x, sum((1, 2)))


@refused("Python's abs is not known")
def python_abs(x, h, n, f, B: tl.constexpr):
    tl.store(x, abs(n))


@refused("y is not defined here")
def only_in_a_branch(x, h, n, f, B: tl.constexpr):
    if n > 2:
        y = 1.0
    tl.store(x, y)


@refused("y is not defined here")
def only_in_a_loop(x, h, n, f, B: tl.constexpr):
    for i in range(n):
        y = 1.0
    tl.store(x, y)


@refused("a is int32[] before and becomes float32[] in this loop")
def carried_type(x, h, n, f, B: tl.constexpr):
    a = 0
    for i in range(n):
        a += tl.load(x + i)
    tl.store(x, a)


@refused("acc is float32[] before and becomes float32[16] in this loop")
def carried_shape(x, h, n, f, B: tl.constexpr):
    acc = 0.0
    for i in range(n):
        acc += tl.load(x + i + tl.arange(0, B))


@refused("acc is float16[16] before and becomes float32[16] in this loop")
def carried_half(x, h, n, f, B: tl.constexpr):
    acc = tl.zeros((B,), tl.float16)
    i = 0
    while i < n:
        acc += tl.load(x + tl.arange(0, B))
        i += 1


@refused("y is constant None before")
def carried_none(x, h, n, f, B: tl.constexpr):
    y = None
    for i in range(n):
        y = 1.0


@refused("B is constant 16 before and becomes int32[] in this loop")
def carried_constant(x, h, n, f, B: tl.constexpr):
    for i in range(n):
        B = B + 1


@refused("a is int32[] before and becomes float32[] in a branch")
def branch_type(x, h, n, f, B: tl.constexpr):
    a = 0
    if n > 2:
        a = 1.0
    tl.store(x, a)


@refused("a is float32[] in one branch and int32[] in the other")
def branches_differ(x, h, n, f, B: tl.constexpr):
    if n > 2:
        a = 1.0
    else:
        a = 1
    tl.store(x, a)


@refused("the two sides of this if are int32[] and float32[]")
def sides_differ(x, h, n, f, B: tl.constexpr):
    tl.store(x, 1 if n > 2 else 2.0)


@refused("a condition is one value; got a tile of shape [16]")
def condition_on_a_tile(x, h, n, f, B: tl.constexpr):
    if tl.arange(0, B) < n:
        tl.store(x, 1.0)


@refused("a condition is a bool, an int or None; got a float")
def condition_on_a_float(x, h, n, f, B: tl.constexpr):
    if B / 2:
        tl.store(x, 1.0)


@refused("a condition is a bool, an int or None; got a str")
def condition_on_a_text(x, h, n, f, B: tl.constexpr):
    if "text":
        tl.store(x, 1.0)


@refused("the condition of a while loop")
def forever(x, h, n, f, B: tl.constexpr):
    while True:
        tl.store(x, 1.0)


@refused("return inside of a loop")
def return_in_a_loop(x, h, n, f, B: tl.constexpr):
    for i in range(n):
        tl.store(x + i, 1.0)
        return


@refused("return inside of a loop")
def return_in_an_if_in_a_loop(x, h, n, f, B: tl.constexpr):
    for i in range(n):
        if i > 3:
            return


@refused("break inside of a kernel")
def breaks(x, h, n, f, B: tl.constexpr):
    for i in range(n):
        break


@refused("continue inside of a kernel")
def continues(x, h, n, f, B: tl.constexpr):
    for i in range(n):
        continue


@refused("else after a loop")
def for_else(x, h, n, f, B: tl.constexpr):
    for i in range(n):
        pass
    else:
        tl.store(x, 1.0)


@refused("else after a loop")
def while_else(x, h, n, f, B: tl.constexpr):
    i = 0
    while i < n:
        i += 1
    else:
        tl.store(x, 1.0)


@refused("a loop goes over range")
def loop_over_a_tuple(x, h, n, f, B: tl.constexpr):
    for i in (1, 2, 3):
        tl.store(x + i, 1.0)


@refused("Python's enumerate is not known")
def loop_over_enumerate(x, h, n, f, B: tl.constexpr):
    for i, j in enumerate((1, 2)):
        tl.store(x + i, 1.0)


@refused("the bounds of a loop are whole numbers")
def loop_to_a_float(x, h, n, f, B: tl.constexpr):
    for i in range(f):
        tl.store(x + i, 1.0)


@refused("a dict inside of a kernel")
def dictionary(x, h, n, f, B: tl.constexpr):
    a = {"b": 1}
    tl.store(x, a["b"])


@refused("a set inside of a kernel")
def sets(x, h, n, f, B: tl.constexpr):
    a = {1, 2}


@refused("try inside of a kernel")
def tries(x, h, n, f, B: tl.constexpr):
    try:
        tl.store(x, 1.0)
    except ValueError:
        pass


@refused("raise inside of a kernel")
def raises(x, h, n, f, B: tl.constexpr):
    if n > 3:
        raise ValueError("n")


@refused("a lambda inside of a kernel")
def lambdas(x, h, n, f, B: tl.constexpr):
    g = lambda v: v + 1
    tl.store(x, g(1.0))


@refused("a generator inside of a kernel")
def generators(x, h, n, f, B: tl.constexpr):
    tl.store(x, max(i for i in (1, 2)))


@refused("a function inside of a kernel")
def functions(x, h, n, f, B: tl.constexpr):
    def g(v):
        return v

    tl.store(x, g(1.0))


@refused("a class inside of a kernel")
def classes(x, h, n, f, B: tl.constexpr):
    class A:
        pass


@refused("an import inside of a kernel")
def imports(x, h, n, f, B: tl.constexpr):
    import math as m

    tl.store(x, m.pi)


@refused("global inside of a kernel")
def globals_(x, h, n, f, B: tl.constexpr):
    global PLAIN
    tl.store(x, 1.0)


@refused("del inside of a kernel")
def deletes(x, h, n, f, B: tl.constexpr):
    a = 1
    del a


@refused("match inside of a kernel")
def matches(x, h, n, f, B: tl.constexpr):
    match B:
        case 16:
            tl.store(x, 1.0)


@refused("the operator '@'")
def matrix_operator(x, h, n, f, B: tl.constexpr):
    a = tl.zeros((16, 16), tl.float32)
    b = a @ a


@refused("'in'")
def membership(x, h, n, f, B: tl.constexpr):
    if B in (16, 32):
        tl.store(x, 1.0)


@refused("the sign '+' before a tile")
def positive(x, h, n, f, B: tl.constexpr):
    tl.store(x, +n)


@refused("'a = b = value'")
def assigned_twice(x, h, n, f, B: tl.constexpr):
    a = b = 0.0
    tl.store(x, a)


@refused("an assignment to an element")
def element(x, h, n, f, B: tl.constexpr):
    a = tl.zeros((16,), tl.float32)
    a[0] = 1.0


@refused("a variable cannot hold a function")
def aliased_function(x, h, n, f, B: tl.constexpr):
    g = tl.exp
    tl.store(x, g(f))


@refused("a variable cannot hold a str")
def text_variable(x, h, n, f, B: tl.constexpr):
    a = "abc"


@refused("'*' outside of a call")
def starred_shape(x, h, n, f, B: tl.constexpr):
    s: tl.constexpr = (B, B)
    a = tl.zeros((*s, B), tl.float32)


@refused("print without a text first")
def prints_a_value(x, h, n, f, B: tl.constexpr):
    print(n)


@refused("a text shows constants only; got int32[]")
def formatted(x, h, n, f, B: tl.constexpr):
    print(f"n = {n}")


@refused("a number is needed here when the kernel is compiled")
def whole_of_a_tile(x, h, n, f, B: tl.constexpr):
    tl.store(x, int(n))


@refused("a number is needed here when the kernel is compiled")
def reshaped_by_argument(x, h, n, f, B: tl.constexpr):
    a = tl.reshape(tl.arange(0, B), (n, 4))


@refused("tl.static_assert of a tile")
def asserts_a_tile(x, h, n, f, B: tl.constexpr):
    tl.static_assert(n > 2)


@refused("the bounds of tl.static_range are constants")
def unrolled_to_argument(x, h, n, f, B: tl.constexpr):
    for i in tl.static_range(n):
        tl.store(x + i, 1.0)


@refused("two_types returns")
def helper_of_two_types(x, h, n, f, B: tl.constexpr):
    tl.store(x, two_types(n))


@refused("endless calls itself")
def recursion(x, h, n, f, B: tl.constexpr):
    tl.store(x, endless(n))


@refused("B has a value already")
def constant_again(x, h, n, f, B: tl.constexpr):
    B: tl.constexpr = 4


@refused("2 variables take a tuple")
def too_few_values(x, h, n, f, B: tl.constexpr):
    a, b = (1, 2, 3)


@refused("the constant 16 has no .to")
def converted_constant(x, h, n, f, B: tl.constexpr):
    tl.store(x, B.to(tl.float32))


@refused("'**' in a call")
def keywords(x, h, n, f, B: tl.constexpr):
    tl.store(x, 1.0, **NOTHING)
