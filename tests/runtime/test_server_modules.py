"""Modules on a board: what is refused, kernels, models, and how they are timed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from mlc_deploy.board.runtime_files import MACHINES, counting_plugin, runtime_file
from mlc_rpc.counters import parse_records, per_call
from mlc_rpc.qemu import refusal
from tests.runtime.board import (
    BYTES,
    WEIGHTS,
    Board,
    X,
    hash_of,
    metadata_of,
    model,
    model_of,
    module_of,
    object_of,
    refused,
)

ADD = module_of("add")


# ---- Modules and kernels ----


@pytest.mark.parametrize("machine", MACHINES)
def test_kernel_runs(machine: str) -> None:
    """The whole way on every machine, a crash and what follows it included."""
    with Board(machine) as board:
        module = board.load(module_of("add", "wild", machine=machine))
        assert module["arena"] is None and module["image_bytes"] > 0
        assert msgpack.unpackb(module["metadata"])["machine"] == machine
        a, b, c = board.tensor(X), board.tensor(2 * X), board.tensor(0 * X)
        ran = board.call("run", module["module"], "add", [a, b, c], {"threads": 4})
        assert len(ran["nanoseconds"]) == 1 and ran["nanoseconds"][0] > 0
        np.testing.assert_array_equal(board.numpy(c, X), 3 * X)
        crash = refused(board, "run", module["module"], "wild", [board.tensor(BYTES)], {})
        assert (crash.kind, crash.details["signal"]) == ("crashed", "SIGSEGV")
        board.call("run", module["module"], "add", [c, b, a], {})
        np.testing.assert_array_equal(board.numpy(a, X), 5 * X)
    assert board.process.returncode == 0


def test_symbolic_dimension_is_bound_by_the_arguments(board: Board) -> None:
    module = board.load(ADD)["module"]
    for size in (1, 5, 1000):
        x = np.ones(size, np.float32)
        a, c = board.tensor(x), board.tensor(x)
        board.call("run", module, "add", [a, a, c], {})
        np.testing.assert_array_equal(board.numpy(c, x), 2 * x)


@pytest.mark.parametrize(
    ("kernel", "args", "text"),
    [
        ("add", ["f64", "f64"], "kernel 'add' takes 3 arguments, given 2"),
        (
            "add",
            ["f64", "f32", "f64"],
            "'b' is float32 (n) with n = 64, but dimension 0 of the giv",
        ),
        ("add", ["f64", "i64", "f64"], "kernel 'add': 'b' is float32 (n), given int32 (64)"),
        ("add", ["f64", "f8x8", "f64"], "'b' is float32 (n), given float32 (8, 8)"),
        ("add64", ["f64", "f64", "f32"], "kernel 'add64': 'c' is float32 (64), given float32 (32)"),
        ("sub", [], "the module has no kernel 'sub'; it has 2, the first is 'add'"),
        (None, [], "the module holds no model; try: name one of its kernels"),
    ],
)
def test_arguments_are_checked(
    board: Board, kernel: str | None, args: list[str], text: str
) -> None:
    kinds = {"f64": ("float32", [64]), "f32": ("float32", [32]), "i64": ("int32", [64]),
             "f8x8": ("float32", [8, 8])}  # fmt: skip
    module = board.load(module_of("add", "add64"))["module"]
    tensors = [board.call("tensor.new", *kinds[arg]) for arg in args]
    error = refused(board, "run", module, kernel, tensors, {})
    assert error.kind == "refused" and text in error.text


def test_kernel_has_its_workspace(board: Board) -> None:
    module = board.load(module_of("workspace"))["module"]
    out = board.tensor(BYTES)
    board.call("run", module, "workspace", [out], {})
    assert board.numpy(out, BYTES)[0] == 7


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"abi": 9}, "the module has ABI version 9, this runtime has version 1; try: "),
        ({"machine": "riscv64"}, "the module is for riscv64, this runtime is for x86_64; try: "),
        ({"features": ["sse2", "dotprod"]}, "uses the CPU feature 'dotprod', which this board ("),
        ({"kernels": 3}, "the module's metadata is invalid: an array is expected"),
        ({"kernels": [{"name": "absent"}]}, "the object does not define its kernel 'absent'"),
        (
            {"kernels": [{"name": "add", "params": [{"name": "p", "dtype": "int3"}]}]},
            "the module uses dtype 'int3', which this runtime does not know",
        ),
        (
            {"kernels": [{"name": "add", "tasks": "m"}]},
            "kernel 'add' names a dimension 'm' that is not among its scalars",
        ),
    ],
)
def test_module_that_does_not_fit_is_refused(
    board: Board, changes: dict[str, Any], text: str
) -> None:
    name = board.blob(module_of("add", says=changes))
    error = refused(board, "module.load", name, None)
    assert error.kind == "refused" and text in error.text
    board.call("blob.free", name)  # nothing holds on to it


def test_object_without_metadata_or_not_an_object_is_refused(board: Board) -> None:
    plain = object_of("x86_64", ("add",), None)
    assert "'.mlc'" in refused(board, "module.load", board.blob(plain), None).text
    for junk in (b"", b"junk", ADD[:200], bytes(1000)):
        error = refused(board, "module.load", board.blob(junk), None)
        assert error.kind == "refused" and error.text


def test_metadata_cut_anywhere_is_refused(board: Board) -> None:
    described = metadata_of("x86_64", ["add64", "double64"]) | {"model": model_of(WEIGHTS)}
    whole = msgpack.packb(described)
    for end in range(0, len(whole), 7):
        module = object_of("x86_64", ("add64", "double64"), whole[:end])
        assert refused(board, "module.load", board.blob(module), None).kind == "refused"
        board.call("blob.free", hash_of(module))


def test_modules_run_out_cleanly(board: Board) -> None:
    modules = [board.load(ADD)["module"] for _ in range(256)]
    error = refused(board, "module.load", hash_of(ADD), None)
    assert "there are 256 modules already; try: free some" in error.text
    board.call("module.free", modules[7])
    assert board.load(ADD)["module"] not in modules


# ---- Models ----


def test_model_walks_its_call_table(board: Board) -> None:
    module = board.load(model(), WEIGHTS)
    x = X.reshape(1, 64)
    w = np.frombuffer(WEIGHTS, np.float32)
    args = [board.tensor(x), board.tensor(0 * x)]
    assert len(board.call("run", module["module"], None, args, {})["nanoseconds"]) == 3
    np.testing.assert_array_equal(board.numpy(args[1], x), (x * 2 + w) + x * 2)
    arena = board.numpy(module["arena"], np.zeros((2, 64), np.float32))
    np.testing.assert_array_equal(arena[1], X * 2)
    np.testing.assert_array_equal(arena[0], X * 2 + w)


def test_model_stops_where_it_is_told(board: Board) -> None:
    module = board.load(model(), WEIGHTS)
    args = [board.tensor(X.reshape(1, 64)), board.tensor(0 * X.reshape(1, 64))]
    for until, layers in [(0, 0), (1, 1), (2, 2), (99, 3)]:
        ran = board.call("run", module["module"], None, args, {"until": until})
        assert len(ran["nanoseconds"]) == layers
        arena = board.numpy(module["arena"], np.zeros((2, 64), np.float32))
        assert (arena[1].any(), arena[0].any()) == (until >= 1, until >= 2)


def test_model_runs_in_pieces(board: Board) -> None:
    module = board.load(model(), WEIGHTS)
    whole, pieces = ([board.tensor(X.reshape(1, 64)), board.tensor(0 * X.reshape(1, 64))]
                     for _ in range(2))  # fmt: skip
    board.call("run", module["module"], None, whole, {})
    for first, until, layers in [(0, 1, 1), (1, 1, 0), (1, 99, 2), (7, 9, 0), (2, 1, 0)]:
        ran = board.call("run", module["module"], None, pieces, {"from": first, "until": until})
        assert len(ran["nanoseconds"]) == layers
    expected, found = (board.numpy(args[1], 0 * X.reshape(1, 64)) for args in (whole, pieces))
    assert expected.any() and (found == expected).all()


def test_model_needs_its_weights(board: Board) -> None:
    name = board.blob(model())
    assert "model needs its weights" in refused(board, "module.load", name, None).text
    other = board.blob(bytes(256))
    assert "of 256 bytes, given " in refused(board, "module.load", name, other).text


def test_model_without_its_arena_is_refused(board: Board) -> None:
    module = board.load(model(), WEIGHTS)
    args = [board.tensor(X.reshape(1, 64)), board.tensor(0 * X.reshape(1, 64))]
    board.call("tensor.free", module["arena"])
    error = refused(board, "run", module["module"], None, args, {})
    assert error.text == f"there is no tensor {module['arena']} on the board; was it freed?"


def test_arena_is_freed_with_its_module(board: Board) -> None:
    module = board.load(model(), WEIGHTS)
    board.call("module.free", module["module"])
    assert "no tensor" in refused(board, "tensor.read", module["arena"], 0, 1).text


ARENA_CALL = [0, 0, 0, 256]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ([7, "l", []], "call 0 (layer 'l') names kernel 7 of 2"),
        ([1, "l", [ARENA_CALL]], "kernel 'double64' takes 2 operands"),
        ([1, "l", [ARENA_CALL, [0, 0, 512, 256]]], "'c' lies outside its memory (offset 512"),
        ([1, "l", [ARENA_CALL, [0, 0, 320, 256]]], "'c' lies outside its memory (offset 320"),
        ([1, "l", [ARENA_CALL, [0, 0, 0, 1 << 63]]], "'c' lies outside its memory"),
        ([1, "l", [ARENA_CALL, [0, 0, 0, 252]]], "'c' lies outside its memory"),
        ([1, "l", [ARENA_CALL, [3, 1, 0, 256]]], "'c' lies outside its memory"),
        ([1, "l", [ARENA_CALL, [4, 0, 0, 256]]], "operand 1 is not a place in memory"),
        ([1, "l", [ARENA_CALL, [0, 0, 4, 256]]], "operand 1 is not a place in memory"),
        ([1, "l", [ARENA_CALL, [1, 0, 0, 256]]], "'c' would overwrite the model's weights"),
        ([1, "l", [ARENA_CALL, [2, 0, 0, 256]]], "'c' would overwrite the model's input"),
        ([1, "l"], "a call has three parts"),
    ],
)
def test_call_that_leaves_its_memory_is_refused(board: Board, call: list[Any], text: str) -> None:
    name = board.blob(model(calls=[call]))
    error = refused(board, "module.load", name, board.blob(WEIGHTS))
    assert error.kind == "refused" and text in error.text


# ---- Time ----


def count_runs(board: Board, options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    module = board.load(module_of("count"))["module"]
    counter = board.tensor(np.zeros(1, np.int32))
    timed = board.call("time", module, "count", [counter], options)
    return timed, int(board.numpy(counter, np.zeros(1, np.int32))[0])


def test_time_runs_as_often_as_asked_and_once_to_warm_up(board: Board) -> None:
    timed, runs = count_runs(board, {"number": 7, "repeat": 5})
    assert timed["number"] == [7] * 5 and runs == 1 + 7 * 5
    assert len(timed["samples"]) == 5 and all(0 < s < 1 for s in timed["samples"])
    assert count_runs(board, {})[1] == 1 + 10  # number = 10, repeat = 1


def test_short_samples_grow_and_the_next_starts_again(board: Board) -> None:
    timed, runs = count_runs(board, {"number": 1, "repeat": 3, "min_repeat_ms": 5})
    for seconds, number in zip(timed["samples"], timed["number"], strict=True):
        assert seconds * number >= 0.005 and number > 1
    # Had the second sample begun with the first one's number, only three samples would have run.
    assert runs > 1 + sum(timed["number"]) + 2


def test_cooldown_rests_between_samples(board: Board) -> None:
    begin = time.monotonic()
    options = {"number": 1, "repeat": 5, "cooldown_interval_ms": 100, "repeats_to_cooldown": 2}
    count_runs(board, options)
    assert time.monotonic() - begin >= 0.2
    begin = time.monotonic()
    count_runs(board, options | {"repeats_to_cooldown": 9, "cooldown_interval_ms": 100_000})
    assert time.monotonic() - begin < 100


def test_cache_flush_costs_no_measured_time_but_is_done(board: Board) -> None:
    flush = {"number": 1, "repeat": 20, "cache_flush_bytes": 32 << 20}
    begin = time.monotonic()
    timed, runs = count_runs(board, flush)
    elapsed = time.monotonic() - begin
    assert runs == 21 and sum(timed["samples"]) < elapsed / 10
    error = refused(board, "time", 256, None, [], {"cache_flush_bytes": 1 << 31})
    assert "cache_flush_bytes = 2147483648, which must be 0 to" in error.text


def test_layers_are_timed_beside_the_whole(board: Board) -> None:
    module = board.load(model(), WEIGHTS)["module"]
    x = np.zeros((1, 64), np.float32)
    args = [board.tensor(x), board.tensor(x)]
    options = {"number": 4, "repeat": 6, "layers": True}
    timed = board.call("time", module, None, args, options)
    assert [len(row) for row in timed["layers"]] == [3] * 6
    for row, sample in zip(timed["layers"], timed["samples"], strict=True):
        assert all(nanoseconds > 0 for nanoseconds in row) and sum(row) <= sample * 1e9
    assert 0 < timed["layer_cost_s"] < 1e-4
    piece = board.call("time", module, None, args, options | {"from": 1, "until": 2})
    assert [len(row) for row in piece["layers"]] == [1] * 6
    assert board.call("time", module, None, args, {})["layers"] == []
    error = refused(board, "time", module, None, args, {"repeat": 6000, "layers": True})
    assert "time: 6000 samples of each of 3 layers; 16384 are the most in all" in error.text


# ---- Marks ----


@pytest.mark.parametrize("machine", ["arm", "aarch64"])
def test_marks_let_qemu_count_each_layer(machine: str, tmp_path: Path) -> None:
    """Layers `second` and `third` are the same kernel on equal shapes: the same instructions."""
    reason = refusal(f"qemu-{machine}", counting_plugin(), str(runtime_file(machine)))
    if reason:
        pytest.skip(reason)
    records = tmp_path / "counts"
    module = module_of(
        "add64", "double64", "count", machine=machine, says={"model": model_of(WEIGHTS)}
    )
    with Board(machine, qemu=("-plugin", f"{counting_plugin()},out={records}")) as board:
        loaded = board.load(module, WEIGHTS)
        args = [board.tensor(X.reshape(1, 64)), board.tensor(0 * X.reshape(1, 64))]
        board.call("run", loaded["module"], None, args, {})
        assert not records.exists() or not records.read_bytes()
        board.call("run", loaded["module"], None, args, {"mark": True})
        first, second, third = per_call(parse_records(records.read_bytes()))
        assert [call.index for call in (first, second, third)] == [0, 1, 2]
        assert second.by_class == third.by_class and first.total < second.total
        assert second.by_class["load"] >= 64 * 2 and second.by_class["store"] >= 64
        assert second.by_class["vector"] >= 64

        before = len(records.read_bytes())
        counter = board.tensor(np.zeros(1, np.int32))
        board.call("run", loaded["module"], "count", [counter], {"mark": True})
        (call,) = per_call(parse_records(records.read_bytes()[before:]))
        assert 3 <= call.total < 30
