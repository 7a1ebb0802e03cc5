"""The trace: recorded, printed as Python that runs, serialised, replayed, changed."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc_deploy import te
from mlc_deploy.errors import ScheduleError
from mlc_deploy.ir import PrimFunc
from mlc_deploy.ir.interp import run
from mlc_deploy.schedule import Schedule, Trace
from mlc_deploy.schedule.sampling import factorizations


def matmul(m: int = 16, n: int = 128, k: int = 12) -> PrimFunc:
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    over = te.reduce_axis((0, k), "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, over] * b[over, j], over), name="C")
    d = te.compute((m, n), lambda i, j: te.maximum(c[i, j], 0.0), name="D")
    return te.create_prim_func([a, b, d])


def sampled(seed: int) -> Schedule:
    """A schedule that uses every kind of handle and of choice."""
    sch = Schedule(matmul(), seed=seed)
    block = sch.get_block("C")
    i, j, k = sch.get_loops(block)
    factors = sch.sample_perfect_tile(loop=j, n=2, max_innermost_factor=16)
    j0, j1 = sch.split(j, factors)
    sch.reorder(i, j0, k, j1)
    unroll = sch.sample_categorical([1, 2, 3], [0.25, 0.5, 0.25])
    k0, k1 = sch.split(k, [None, unroll])
    sch.unroll(k1)
    init = sch.decompose_reduction(block, k0)
    sch.vectorize(sch.get_loops(init)[-1])
    sch.vectorize(j1)
    return sch


def check(func: PrimFunc) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((16, 12), np.float32), rng.random((12, 128), np.float32)
    d = np.empty((16, 128), np.float32)
    run(func, a, b, d)
    np.testing.assert_allclose(d, a @ b, rtol=1e-5)


def test_same_seed_same_trace() -> None:
    assert str(sampled(7).trace) == str(sampled(7).trace)
    assert len({str(sampled(seed).trace) for seed in range(20)}) > 5


def test_perfect_tiles_multiply_to_the_extent() -> None:
    found = set()
    for seed in range(60):
        sch = Schedule(matmul(), seed=seed)
        _, j, _ = sch.get_loops("C")
        outer, inner = sch.sample_perfect_tile(loop=j, n=2, max_innermost_factor=16)
        assert outer * inner == 128 and inner <= 16
        found.add((int(outer), int(inner)))
    assert (8, 16) in found and len(found) == 5


@pytest.mark.parametrize("extent", [1, 7, 12, 128])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_factorizations_are_all_and_distinct(extent: int, n: int) -> None:
    found = factorizations(extent, n, extent)
    assert len(set(found)) == len(found)
    ranges = np.indices((extent + 1,) * n).reshape(n, -1).T
    assert set(found) == set(map(tuple, ranges[ranges.prod(axis=1) == extent].tolist()))


def test_printed_trace_runs(golden: object) -> None:
    sch = sampled(3)
    golden(str(sch.trace))  # type: ignore[operator]
    scope: dict[str, object] = {"Schedule": Schedule}
    exec(str(sch.trace), scope)
    other = Schedule(matmul())
    scope["apply_trace"](other)  # type: ignore[operator]
    assert str(other.func) == str(sch.func)
    check(other.func)


def test_a_simplified_trace_does_the_same_and_looks_less() -> None:
    sch = sampled(3)
    sch.get_loops("D")
    sch.get_consumers("C")
    short = sch.trace.simplified()
    other = Schedule(matmul())
    short.apply(other)
    assert str(other.func) == str(sch.func)
    assert len(short.instructions) == len(sch.trace.instructions) - 2
    assert list(short.decisions.values()) == list(sch.trace.decisions.values())
    assert short.simplified() == short


def test_replays_from_json() -> None:
    sch = sampled(5)
    text = sch.trace.dumps()
    json.loads(text)
    other = Schedule(matmul())
    Trace.loads(text).apply(other)
    assert str(other.func) == str(sch.func)
    assert str(other.trace) == str(sch.trace)


@pytest.mark.parametrize("tile", [[128, 1], [64, 2], [16, 8], [8, 16]])
def test_replays_with_another_decision(tile: list[int]) -> None:
    trace = sampled(5).trace
    number = next(n for n, i in enumerate(trace.instructions) if i.name == "sample_perfect_tile")
    other = Schedule(matmul())
    trace.with_decision(number, tile).apply(other)
    assert other.trace.decisions[number] == tile
    check(other.func)


def test_a_decision_for_another_extent_is_made_to_fit() -> None:
    trace = sampled(5).trace
    other = Schedule(matmul(n=96))
    trace.apply(other)
    number = next(n for n, i in enumerate(trace.instructions) if i.name == "sample_perfect_tile")
    assert np.prod(other.trace.decisions[number]) == 96


def test_every_primitive_is_recorded() -> None:
    sch = Schedule(matmul(16, 24, 12))
    i, j, k = sch.get_loops("C")
    write = sch.cache_write("C", 0, "local")
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [3, None])
    sch.reorder(i0, j0, k, i1, j1)
    sch.reverse_compute_at(write, j0)
    read = sch.cache_read("C", 1, "global")
    sch.transform_layout(read, ("write", 0), lambda k, j: (j // 8, k, j % 8))
    sch.annotate(i0, "note", 1)
    sch.unannotate(i0, "note")
    sch.decompose_reduction("C", k)
    sch.unroll(i1)
    sch.vectorize(j1)
    sch.reverse_compute_inline("D")
    sch.parallel(i0)
    other = Schedule(matmul(16, 24, 12))
    Trace.loads(sch.trace.dumps()).apply(other)
    assert str(other.func) == str(sch.func)


def test_a_copy_goes_its_own_way() -> None:
    sch = Schedule(matmul(), seed=1)
    other = sch.copy()
    _, j, _ = other.get_loops("C")
    other.split(j, [None, 8])
    assert len(sch.trace.instructions) == 0 and str(sch.func) == str(matmul())
    assert [i.name for i in other.trace.instructions] == ["get_loops", "split"]


def test_compute_locations_are_legal_ones() -> None:
    for seed in range(20):
        sch = Schedule(matmul(), seed=seed)
        where = sch.sample_compute_location("C")
        if isinstance(where, str):
            sch.compute_at("C", where)
        replayed = Schedule(matmul())
        sch.trace.apply(replayed)
        assert str(replayed.func) == str(sch.func)
        check(sch.func)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[1]", "[2, []]", '[1, [["split"]]]', '{"a": 1}', "[1, [[1, 2, 3, 4]]]", "nonsense"],
)
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no schedule trace|a schedule trace of version 2"):
        Trace.loads(text)


LOOPS = '["get_loops", {"block": "C"}, "lll", null]'


@pytest.mark.parametrize(
    ("instructions", "why"),
    [
        ('["split", [], "ll", null]', "it is not a list of a name"),
        ('[5, {}, "", null]', "it is not a list of a name"),
        ('["__import__(1)", {}, "", null]', "its name is none"),
        ('["get_block", {"": "C"}, "b", null]', "'' names no argument"),
        ('["get_block", {"name": "C"}, "x", null]', "its results are of no kind"),
        ('["reorder", {"*order": 7}, "", null]', r"\*order is not a list"),
        ('["sample_perfect_tile", {"loop": "i", "n": 40}, "v", null]', "it has no decision"),
        ('["unroll", {"loop": {"output": [7, 0]}}, "", null]', "there is no instruction 7 before"),
        ('["unroll", {"loop": {"output": [0, 0]}}, "", null]', "there is no instruction 0 before"),
        (LOOPS + ', ["unroll", {"loop": {"output": [0, 3]}}, "", null]', "0 has no result 3"),
        (LOOPS + ', ["unroll", {"loop": {"output": [0, -1]}}, "", null]', "0 has no result -1"),
        ('["annotate", {"value": {"a": 1}}, "", null]', r"\{'a': 1\} is not a value"),
        ('["split", {"factors": [[[[]]]]}, "ll", null]', "too long or too deep"),
        (f'["split", {{"factors": [{"1, " * 2000} 1]}}, "ll", null]', "too long or too deep"),
        (f'["get_block", {{"name": "{"C" * 2000}"}}, "b", null]', "a text is too long"),
        ('["split", {"factors": [1, 1000000000000]}, "ll", null]', "a number is too large"),
        (f'["split", {{"factors": [1, 1{"0" * 400}]}}, "ll", null]', "a number is too large"),
        ('["annotate", {"value": NaN}, "", null]', "a number is too large"),
        (", ".join(['["add_unit_loop", {"at": "C"}, "l", null]'] * 3000), "3000 instructions"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_instructions_that_are_none_are_refused(instructions: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"no schedule trace: .*{why}"):
        Trace.loads(f"[1, [{instructions}]]")


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        ('["get_block", {"nome": "C"}, "b", null]', "get_block .instruction 1. fails: TypeError"),
        ('["get_block", {"name": 5}, "b", null]', "get_block .instruction 1. fails: TypeError"),
        ('["split", {"loop": "i", "factors": ["4", 4]}, "ll", null]', "split .instruction 1. fa"),
        (
            '["transform_layout", {"block": "C", "buffer": "C", "index_map": "lambda i, j: [i // 0,'
            ' j]"}, "", null]',
            "transform_layout",
        ),
        (", ".join(['["add_unit_loop", {"at": "C"}, "l", null]'] * 999), "leaves more than 100"),
        (f'["split", {{"loop": "i", "factors": [{"1, " * 250} 16]}}, "l", null]', "split"),
    ],
)
def test_an_instruction_that_fails_is_named(instruction: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        Trace.loads(f"[1, [{LOOPS}, {instruction}]]").apply(Schedule(matmul()))


def test_a_decision_that_is_far_too_large_takes_no_time() -> None:
    text = '["sample_perfect_tile", {"loop": "j", "n": 3}, "vvv", [1, 2147483647, 2147483647]]'
    sch = Schedule(matmul())
    Trace.loads(f"[1, [{text}]]").apply(sch)
    assert sch.trace.decisions == {0: [1, 1, 128]}
    Schedule(matmul()).sample_perfect_tile("j", 2, decision=[1, 10**12])


def mutated(data: st.DataObject, value: Any) -> Any:
    """A value of JSON with one place in it made otherwise."""
    inside = list(value) if isinstance(value, (list, dict)) else []
    if not inside or data.draw(st.integers(0, 7)) == 0:
        return data.draw(OTHERS)
    if isinstance(value, list):
        place = data.draw(st.integers(0, len(value) - 1))
        return [*value[:place], mutated(data, value[place]), *value[place + 1 :]]
    key = data.draw(st.sampled_from(inside))
    if data.draw(st.integers(0, 3)) == 0:
        return {data.draw(st.sampled_from(["", "*", "loop", "n", "x"])): value[key]}
    return {**value, key: mutated(data, value[key])}


OTHERS = st.sampled_from(
    [None, True, -1, 0, 1, 3, 10**12, 0.5, float("inf"), "", "C", "i", "j_0", "split", "blv", [],
     [1], [[], 2], {}, {"output": [0, 0]}, {"output": [3, 1]}, {"output": "x"}, "lambda i: [foo]"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_mutated_trace_raises_nothing_else(data: st.DataObject) -> None:
    body = json.loads(sampled(3).trace.dumps())
    for _ in range(data.draw(st.integers(1, 3))):
        body = mutated(data, body)
    try:
        trace = Trace.loads(json.dumps(body))
    except ValueError as error:
        assert re.match(r"no schedule trace: |a schedule trace of version ", str(error))
        return
    assert Trace.loads(trace.dumps()) == trace
    assert str(trace)
    with contextlib.suppress(ScheduleError):
        trace.apply(Schedule(matmul()))


def test_a_trace_that_does_not_fit_is_refused() -> None:
    x = te.placeholder((4,), name="x")
    other = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1.0, name="C")])
    with pytest.raises(ScheduleError, match="gave fewer results than when it was recorded"):
        sampled(1).trace.apply(Schedule(other))


def test_unknown_primitives_are_refused() -> None:
    trace = Trace.from_json([1, [["__init__", {}, "", None]]])
    with pytest.raises(ScheduleError, match="no primitive '__init__'"):
        trace.apply(Schedule(matmul()))
