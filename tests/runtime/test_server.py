"""The runtime as a board serves it: every method, on a stream that may send anything."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pytest

from mlc_deploy.runtime_files import MACHINES, runtime_file
from mlc_rpc.wire import MAX_CHUNK, MAX_MESSAGE, METHODS
from tests.runtime.board import (
    PATIENCE,
    Array,
    Board,
    Gone,
    Refusal,
    hash_of,
    metadata_of,
    model_of,
    module_of,
    object_of,
)

X = np.arange(64, dtype=np.float32)
WEIGHTS = np.linspace(-1, 1, 64, dtype=np.float32).tobytes()
ADD = module_of("add")


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as b:
        yield b


def refused(board: Board, *request: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        board.call(*request)
    return caught.value


# ---- The program ----


def test_version_and_usage() -> None:
    program = str(runtime_file("x86_64"))
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=PATIENCE)
    assert re.fullmatch(
        r"mlc-runtime \d+\.\d+\.\d+ \(x86_64, wire 1\.0, module ABI 1\)\n", said.stdout
    )
    wrong = subprocess.run([program, "--port"], capture_output=True, text=True, timeout=PATIENCE)
    assert wrong.returncode == 2 and wrong.stderr.startswith("usage: ") and not wrong.stdout


@pytest.mark.parametrize("machine", MACHINES)
def test_small(machine: str) -> None:
    """Each program is under 150 KB, and idle its two processes take under 2 MB of memory."""
    assert runtime_file(machine).stat().st_size < 150_000
    if machine == "x86_64":
        with Board() as board:
            board.load(ADD)
            for pid in (board.process.pid, *board.children()):
                with open(f"/proc/{pid}/status") as status:
                    resident = re.search(r"VmRSS:\s+(\d+) kB", status.read())
                assert resident and int(resident[1]) < 2048


# ---- Who is there ----


def test_hello_comes_first() -> None:
    with Board(greet=False) as board:
        error = refused(board, "describe")
        assert (error.kind, error.text) == ("protocol", "describe: hello comes first")
        major, minor, nonce = board.call("hello", 1, 7, bytes(32))
        assert (major, minor) == (1, 0) and len(nonce) == 32
        assert nonce != board.call("hello", 1, 0, bytes(32))[2]
        assert board.call("describe")["abi"] == 1


def test_another_major_version_is_refused_by_both_numbers() -> None:
    with Board(greet=False) as board:
        error = refused(board, "hello", 2, 3, bytes(32))
        assert error.kind == "refused"
        assert "version 2.3 of the wire" in error.text and "speaks 1.0; try: " in error.text
        assert "hello comes first" in refused(board, "ping", 1).text


@pytest.mark.parametrize("machine", MACHINES)
def test_describe(machine: str) -> None:
    with Board(machine) as board:
        said = board.call("describe")
    assert said["machine"] == machine
    assert said["kernel"] == os.uname().release
    assert said["cores"] >= 1 and said["memory"] > 1 << 26 and said["page_size"] >= 4096
    assert len(said["cpus"]) == min(said["cores"], 64)
    assert {"x86_64": "sse2", "aarch64": "neon", "arm": "vfp3d16"}[machine] in said["features"]


@pytest.mark.parametrize("payload", [None, True, -5, 1.5, "é", b"\0", [1, [2]], {"a": {"b": []}}])
def test_ping_returns_what_it_is_given(board: Board, payload: object) -> None:
    assert board.call("ping", payload) == payload


def test_ping_of_the_largest_message(board: Board) -> None:
    payload = os.urandom(MAX_MESSAGE - 64)
    assert board.call("ping", payload) == payload


def test_requests_may_be_pipelined(board: Board) -> None:
    requests = [board.ask("ping", i) for i in range(2000)]
    assert [board.answer(request) for request in requests] == list(range(2000))


# ---- Tensors ----


@pytest.mark.parametrize(
    "dtype",
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split(),
)
def test_tensor_of_every_dtype_comes_back(board: Board, dtype: str) -> None:
    array = np.arange(30).reshape(2, 3, 5).astype(dtype)
    np.testing.assert_array_equal(board.numpy(board.tensor(array), array), array)


def test_tensor_larger_than_a_chunk_and_in_parts(board: Board) -> None:
    array: Array = np.random.default_rng(0).integers(0, 256, 3 * MAX_CHUNK + 17, dtype=np.uint8)
    tensor = board.tensor(array)
    board.call("tensor.write", tensor, 5, b"abc")
    array[5:8] = np.frombuffer(b"abc", np.uint8)
    np.testing.assert_array_equal(board.numpy(tensor, array), array)
    assert board.call("tensor.read", tensor, array.nbytes, 0) == b""


def test_pipelined_writes_do_not_mix(board: Board) -> None:
    size = 1 << 22
    data = os.urandom(size)
    tensor = board.call("tensor.new", "uint8", [size])
    step = 100_003
    requests = [
        board.ask("tensor.write", tensor, at, data[at : at + step]) for at in range(0, size, step)
    ]
    assert all(board.answer(request) is None for request in requests)
    got = [
        board.ask("tensor.read", tensor, at, min(step, size - at)) for at in range(0, size, step)
    ]
    assert b"".join(board.answer(request) for request in got) == data


def test_scalar_and_empty_tensors(board: Board) -> None:
    scalar = board.tensor(np.array(3.5, np.float64))
    assert np.frombuffer(board.call("tensor.read", scalar, 0, 8), np.float64) == 3.5
    empty = board.call("tensor.new", "float32", [4, 0, 1 << 40])
    assert board.call("tensor.read", empty, 0, 0) == b""
    assert refused(board, "tensor.read", empty, 0, 1).kind == "refused"


def xorshift(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """The generator as the wire describes it; uint64 [count]."""
    state, outputs = seed or 0x9E3779B97F4A7C15, []
    for _ in range(count):
        state ^= state >> 12
        state ^= state << 25 & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 27
        outputs.append(state * 0x2545F4914F6CDD1D & 0xFFFFFFFFFFFFFFFF)
    return np.array(outputs, np.uint64)


@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize(
    ("dtype", "bits"), [("float16", 10), ("float32", 23), ("float64", 52)], ids=lambda v: str(v)
)
def test_fill_draws_floats(board: Board, dtype: str, bits: int, seed: int) -> None:
    tensor = board.tensor(np.zeros(1000, dtype))
    board.call("tensor.fill", tensor, "random", seed)
    got = board.numpy(tensor, np.zeros(1000, dtype))
    top = xorshift(seed, 1000) >> np.uint64(63 - bits)
    np.testing.assert_array_equal(got, (top.astype(np.float64) * 2.0**-bits - 1).astype(dtype))
    assert got.min() < -0.9 and got.max() > 0.9


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "bool"])
def test_fill_draws_integers(board: Board, dtype: str) -> None:
    tensor = board.tensor(np.zeros(1000, dtype))
    board.call("tensor.fill", tensor, "random", 9)
    bits = 1 if dtype == "bool" else 8 * np.dtype(dtype).itemsize
    expected = (xorshift(9, 1000) >> np.uint64(64 - bits)).astype(dtype)
    np.testing.assert_array_equal(board.numpy(tensor, expected), expected)


def test_fill_draws_bfloat16(board: Board) -> None:
    tensor = board.call("tensor.new", "bfloat16", [1000])
    board.call("tensor.fill", tensor, "random", 3)
    halves = np.frombuffer(board.call("tensor.read", tensor, 0, 2000), np.uint16)
    got = (halves.astype(np.uint32) << 16).view(np.float32)
    top = (xorshift(3, 1000) >> np.uint64(56)).astype(np.float32)
    np.testing.assert_array_equal(got, top / 128 - 1)


def test_ping_overtakes_a_large_fill(board: Board) -> None:
    tensor = board.call("tensor.new", "uint8", [96 << 20])
    fill, ping = board.ask("tensor.fill", tensor, "random", 1), board.ask("ping", None)
    assert board.receive()[1] == ping
    assert board.answer(fill) is None
    fill, read = board.ask("tensor.fill", tensor, "zero", 0), board.ask("tensor.read", tensor, 0, 9)
    assert board.receive()[1] == fill
    assert board.answer(read) == bytes(9)


def test_ids_do_not_come_back(board: Board) -> None:
    first = board.call("tensor.new", "int8", [1])
    board.call("tensor.free", first)
    second = board.call("tensor.new", "int8", [1])
    assert first != second
    error = refused(board, "tensor.read", first, 0, 1)
    assert error.text == f"there is no tensor {first} on the board; was it freed?"


@pytest.mark.parametrize(
    ("request_", "kind", "text"),
    [
        (("tensor.new", "float8", [1]), "refused", "there is no dtype 'float8'"),
        (("tensor.new", "int8", [1] * 13), "refused", "at most 12 dimensions, not 13"),
        (("tensor.new", "int8", [1 << 63]), "protocol", "an extent is below 2^63"),
        (("tensor.new", "int8", [-1]), "protocol", "an unsigned integer is expected"),
        (("tensor.new", "int8", [1 << 62]), "memory", "does not fit"),
        (("tensor.new", "int64", [1 << 40, 1 << 40]), "memory", "does not fit"),
        (("tensor.new", "int8"), "protocol", "tensor.new takes 2 parameters, given 1"),
        (("tensor.read", 1 << 40, 0, 1), "refused", "there is no tensor 1099511627776"),
        (("tensor.read", "x", 0, 1), "protocol", "an unsigned integer is expected"),
        (("tensor.free", 0), "refused", "there is no tensor 0"),
        (("tensor.fill", 1024, "random"), "protocol", "takes 3 parameters"),
        (("blob.has", b"short"), "protocol", "a hash has 32 bytes"),
        (("blob.get", bytes(32), 0, 1), "refused", "is not there on the board; try: blob.put"),
        (("module.load", bytes(32), None), "refused", "the object blob 00000000... is not there"),
        (("module.free", 256), "refused", "there is no module 256"),
        (("run", 256, None, [], {}), "refused", "there is no module 256"),
        (("run", 256, None, [1], {}), "refused", "there is no tensor 1 "),
        (("run", 256, "k" * 300, [], {}), "refused", "so long a name"),
        (("run", 256, None, [], {"treads": 1}), "refused", "run has no option 'treads'"),
        (("run", 256, None, [], {"number": 1}), "refused", "run has no option 'number'"),
        (("time", 256, None, [], {"mark": True}), "refused", "time has no option 'mark'"),
        (("time", 256, None, [], {"repeat": 10001}), "refused", "repeat = 10001, which must be 1"),
        (("time", 256, None, [], {"min_repeat_ms": -1}), "refused", "must be 0 to 10000000 mill"),
        (("time", 256, None, [], {"min_repeat_ms": float("nan")}), "protocol", "not NaN"),
        (("no\xffsuch",), "protocol", "this runtime (wire 1.0) has no method 'no\xffsuch'"),
    ],
    ids=str,
)
def test_bad_requests_are_answered(
    board: Board, request_: tuple[Any, ...], kind: str, text: str
) -> None:
    error = refused(board, *request_)
    assert error.kind == kind and text in error.text
    assert board.call("ping", "still here") == "still here"


@pytest.mark.parametrize(("offset", "size"), [(0, 9), (8, 1), (1 << 64 - 1, 1), (9, 0), (1, 8)])
def test_access_outside_a_tensor_is_refused(board: Board, offset: int, size: int) -> None:
    tensor = board.tensor(np.zeros(8, np.uint8))
    assert "reach outside its 8 bytes" in refused(board, "tensor.read", tensor, offset, size).text
    error = refused(board, "tensor.write", tensor, offset, bytes(size))
    assert "reach outside its 8 bytes" in error.text
    assert board.numpy(tensor, np.zeros(8, np.uint8)).sum() == 0


def test_a_refused_upload_is_discarded_whole(board: Board) -> None:
    tensor = board.tensor(np.zeros(8, np.uint8))
    assert "524289 bytes at once" in refused(board, "tensor.write", tensor, 0, bytes(524289)).text
    assert "no tensor 99" in refused(board, "tensor.write", 99, 0, bytes(400_000)).text
    assert board.call("ping", 1) == 1


def test_memory_comes_back(board: Board) -> None:
    """All that may be had at once can be had a second time, and more cannot."""
    memory = board.call("describe")["memory"]
    size = memory // 2
    for _ in range(3):
        tensor = board.call("tensor.new", "uint8", [size])
        error = refused(board, "tensor.new", "uint8", [size])
        assert error.kind == "memory" and "try: free tensors and blobs" in error.text
        board.call("tensor.free", tensor)


def test_tensors_run_out_cleanly(board: Board) -> None:
    tensors: list[int] = []
    with pytest.raises(Refusal) as caught:
        while len(tensors) < 5000:
            tensors.append(board.call("tensor.new", "int8", [1]))
    assert caught.value.kind in ("refused", "memory") and "try: free" in caught.value.text
    board.call("tensor.free", tensors[0])
    board.call("tensor.new", "int8", [1])


# ---- Blobs ----


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 256, 1000, MAX_CHUNK, 2 * MAX_CHUNK + 5])
def test_blob_has_the_hash_of_its_content(board: Board, size: int) -> None:
    data = os.urandom(size)
    assert board.call("blob.has", hash_of(data)) == [0, False]
    board.blob(data)
    assert board.call("blob.has", hash_of(data)) == [size, True]
    part = board.call("blob.get", hash_of(data), size // 3, min(size - size // 3, 100))
    assert part == data[size // 3 :][:100]


def test_blob_is_resumed_and_must_continue(board: Board) -> None:
    data = os.urandom(1000)
    name = hash_of(data)
    assert board.call("blob.put", name, 1000, 0, data[:300]) == 300
    assert board.call("blob.has", name) == [300, False]
    for total, offset, size in [(1000, 200, 10), (1000, 400, 10), (999, 300, 10), (1000, 300, 701)]:
        error = refused(board, "blob.put", name, total, offset, bytes(size))
        assert "do not continue this blob, of which 300 bytes are there" in error.text
    assert "is not complete on the board" in refused(board, "blob.get", name, 0, 1).text
    assert "is not complete" in refused(board, "module.load", name, None).text
    assert board.call("blob.put", name, 1000, 300, data[300:]) == 1000
    assert board.call("blob.put", name, 1000, 1000, b"") == 1000


def test_blob_with_another_content_is_removed(board: Board) -> None:
    name = hash_of(b"right")
    error = refused(board, "blob.put", name, 5, 0, b"wrong")
    assert error.kind == "refused" and "another hash than its name" in error.text
    assert board.call("blob.has", name) == [0, False]
    assert board.call("blob.put", name, 5, 0, b"right") == 5


def test_blob_is_freed_when_no_module_needs_it(board: Board) -> None:
    module = board.load(ADD)["module"]
    assert "1 modules need this blob" in refused(board, "blob.free", hash_of(ADD)).text
    board.call("module.free", module)
    board.call("blob.free", hash_of(ADD))
    assert board.call("blob.has", hash_of(ADD)) == [0, False]
    board.call("blob.free", hash_of(ADD))


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


BYTES = np.zeros(64, np.uint8)


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
        ({"kernels": 3}, "the module's metadata is not in order: an array is expected"),
        ({"kernels": [{"name": "absent"}]}, "the object does not define its kernel 'absent'"),
        (
            {"kernels": [{"name": "add", "params": [{"name": "p", "dtype": "int3"}]}]},
            "the module uses dtype 'int3', which this runtime does not know",
        ),
        (
            {"kernels": [{"name": "add", "tasks": "m"}]},
            "kernel 'add' names a dimension 'm' that is none of its scalars",
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


def model(**changes: Any) -> bytes:
    return module_of("add64", "double64", says={"model": model_of(WEIGHTS, **changes)})


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


# ---- Kernels that go wrong ----

# Of each machine: the signal that a trap is.
CRASHES = {
    "wild": "SIGSEGV",
    "deep": "SIGSEGV",
    "overrun": "SIGSEGV",
}
TRAPS = {"x86_64": "SIGILL", "arm": "SIGILL", "aarch64": "SIGTRAP"}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kernel", ["wild", "trap", "deep", "overrun"])
def test_crash_names_signal_and_kernel_and_costs_nothing(machine: str, kernel: str) -> None:
    with Board(machine) as board:
        module = board.load(module_of(kernel, "add", machine=machine))["module"]
        kept, scratch = board.tensor(X), board.tensor(BYTES)
        for _ in range(2):
            error = refused(board, "run", module, kernel, [scratch], {})
            signal = CRASHES.get(kernel, TRAPS[machine])
            assert error.kind == "crashed"
            assert error.details == {"signal": signal, "kernel": kernel, "layer": "", "call": 0}
            assert error.text.startswith(f"{signal} in kernel '{kernel}': it ")
        np.testing.assert_array_equal(board.numpy(kept, X), X)
        board.call("run", module, "add", [kept, kept, kept], {})
        np.testing.assert_array_equal(board.numpy(kept, X), 2 * X)


def test_crash_in_a_model_names_the_layer(board: Board) -> None:
    weights = bytes(256)
    described = model_of(weights)
    described["calls"][2] = [2, "features.3", [[0, 0, 0, 256]]]
    module = board.load(module_of("add64", "double64", "wild", says={"model": described}), weights)
    args = [board.tensor(X.reshape(1, 64)), board.tensor(0 * X.reshape(1, 64))]
    for request, options in (("run", {}), ("time", {"number": 3})):
        error = refused(board, request, module["module"], None, args, options)
        assert error.details == {
            "signal": "SIGSEGV", "kernel": "wild", "layer": "features.3", "call": 2,
        }  # fmt: skip
        assert error.text.startswith("SIGSEGV in kernel 'wild' (layer 'features.3', call 2): it ")
    arena = board.numpy(module["arena"], np.zeros(64, np.float32))  # outlives the crash
    np.testing.assert_array_equal(arena, 2 * X)
    ran = board.call("run", module["module"], None, args, {"until": 2})
    assert len(ran["nanoseconds"]) == 2


@pytest.mark.parametrize("request_", ["run", "time"])
def test_endless_loop_ends_at_its_timeout(board: Board, request_: str) -> None:
    module = board.load(module_of("spin", "add"))["module"]
    begin = time.monotonic()
    error = refused(board, request_, module, "spin", [board.tensor(BYTES)], {"timeout_ms": 300})
    assert 0.3 <= time.monotonic() - begin < 5
    assert error.kind == "timeout" and error.details["kernel"] == "spin"
    assert error.text == ("kernel 'spin' was still at work after 300 ms; try: a larger timeout_ms")
    a = board.tensor(X)
    board.call("run", module, "add", [a, a, a], {"timeout_ms": 10_000})


def test_supervisor_answers_while_a_kernel_runs(board: Board) -> None:
    module = board.load(module_of("spin"))["module"]
    tensor = board.tensor(BYTES)
    run = board.ask("run", module, "spin", [tensor], {"timeout_ms": 700})
    assert board.call("ping", "beat") == "beat"
    other = board.tensor(X)
    for request in (
        ("run", module, "spin", [tensor], {}),
        ("module.load", hash_of(module_of("spin")), None),
        ("module.free", module),
    ):
        error = refused(board, *request)
        assert error.kind == "refused" and f"{request[0]}: busy" in error.text
    board.call("tensor.free", tensor)  # in use: its memory stays until the kernel has ended
    np.testing.assert_array_equal(board.numpy(other, X), X)
    with pytest.raises(Refusal) as caught:
        board.answer(run)
    assert caught.value.kind == "timeout"


def test_status_of_a_kernel_is_an_error(board: Board) -> None:
    module = board.load(module_of("status"))["module"]
    error = refused(board, "run", module, "status", [board.tensor(BYTES)], {})
    assert error.kind == "crashed"
    assert error.text == "kernel 'status' returned status 1: an access outside its buffer"
    assert error.details == {"signal": "", "kernel": "status", "layer": "", "call": 0}


def test_worker_killed_while_idle_is_replaced(board: Board) -> None:
    module = board.load(ADD)["module"]
    a = board.tensor(X)
    board.call("run", module, "add", [a, a, a], {})
    (worker,) = board.children()
    os.kill(worker, 9)
    board.call("run", module, "add", [a, a, a], {})
    np.testing.assert_array_equal(board.numpy(a, X), 4 * X)
    assert board.children() not in ([], [worker])


def test_workspace_that_does_not_fit_is_a_memory_error(board: Board) -> None:
    huge = metadata_of("x86_64", ["add"])
    huge["kernels"][0]["workspace"] = 1 << 50
    module = object_of("x86_64", ("add",), msgpack.packb(huge))
    error = refused(board, "module.load", board.blob(module), None)
    assert error.kind == "memory" and "a workspace" in error.text
    arena = board.blob(model(arena=1 << 50))
    error = refused(board, "module.load", arena, board.blob(WEIGHTS))
    assert error.kind == "memory" and "a tensor of 1125899906842624 bytes" in error.text


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
    assert 0.2 <= time.monotonic() - begin < 5
    begin = time.monotonic()
    count_runs(board, options | {"repeats_to_cooldown": 9})
    assert time.monotonic() - begin < 0.2


def test_cache_flush_costs_no_measured_time_but_is_done(board: Board) -> None:
    flush = {"number": 1, "repeat": 20, "cache_flush_bytes": 32 << 20}
    begin = time.monotonic()
    timed, runs = count_runs(board, flush)
    elapsed = time.monotonic() - begin
    assert runs == 21 and sum(timed["samples"]) < elapsed / 10
    error = refused(board, "time", 256, None, [], {"cache_flush_bytes": 1 << 31})
    assert "cache_flush_bytes = 2147483648, which must be 0 to" in error.text


# ---- The stream ----


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"\xc1", "is not msgpack"),
        (b"\x05", "is not a msgpack-rpc request"),
        (msgpack.packb({}), "is not a msgpack-rpc request"),
        (msgpack.packb([]), "is not a msgpack-rpc request"),
        (msgpack.packb([0, 1, "ping"]), "is not a msgpack-rpc request"),
        (msgpack.packb([0, 1, "ping", 5]), "is not a msgpack-rpc request"),
        (msgpack.packb([0, 1 << 32, "ping", [1]]), "is not a msgpack-rpc request"),
        (msgpack.packb([0, 1, b"ping", [1]]), "is not a msgpack-rpc request"),
        (msgpack.packb([1, 1, None, None]), "is not a msgpack-rpc request"),
        (msgpack.packb([2, 1, []]), "is not msgpack-rpc"),
        (b"\x94\x00\x01\xa4ping" + b"\x91" * 9, "is nested more than 8 levels deep"),
        (b"\x94\x00\x01\xa4ping\xdd\xff\xff\xff\xff", "is longer than 1 MiB"),
        (b"\x94\x00\x01\xa4ping\x91\xc6\xff\xff\xff\xff", "is longer than 1 MiB"),
        (b"\x94\x00\x01\xa4ping\x91\xdf\xff\xff\xff\xff", "is longer than 1 MiB"),
    ],
    ids=lambda v: v[:12].hex() if isinstance(v, bytes) else "",
)
def test_what_is_no_request_ends_the_session(board: Board, frame: bytes, why: str) -> None:
    board.send(frame)
    with pytest.raises(Refusal) as caught:
        board.answer(None)
    assert caught.value.kind == "protocol"
    assert caught.value.text == f"what arrived on the stream {why}; the session ends"
    with pytest.raises(Gone):
        board.receive()
    assert board.process.wait(PATIENCE) == 1


def test_message_that_never_closes_ends_at_the_limit(board: Board) -> None:
    """An array that fills the largest message, inside one that promises another element."""
    head = b"\x94\x00\x01\xa4ping\x91\x92\xdd"
    elements = MAX_MESSAGE - len(head) - 4
    board.send(head + elements.to_bytes(4, "big") + bytes(elements))
    with pytest.raises(Refusal, match="longer than 1 MiB"):
        board.answer(None)


def test_requests_arrive_byte_by_byte(board: Board) -> None:
    tensor = board.tensor(BYTES)
    for message in ([0, 900, "tensor.write", [tensor, 1, b"xyz"]], [0, 901, "ping", [["a", {}]]]):
        for byte in msgpack.packb(message):
            board.send(bytes([byte]))
    assert board.answer(900) is None
    assert board.answer(901) == ["a", {}]
    assert bytes(board.numpy(tensor, BYTES)[:5]) == b"\0xyz\0"


def test_notifications_are_ignored(board: Board) -> None:
    board.send(msgpack.packb([2, "ping", [1]]) + msgpack.packb([2, "bulk", [os.urandom(99_000)]]))
    assert board.call("ping", 2) == 2


def test_client_that_does_not_read_stops_nothing(board: Board) -> None:
    """Its requests wait; a deadline does not, and nothing is lost when it reads again."""
    module = board.load(module_of("spin"))["module"]
    tensor = board.call("tensor.new", "uint8", [MAX_CHUNK])
    run = board.ask("run", module, "spin", [tensor_of(board)], {"timeout_ms": 200})
    reads = [board.ask("tensor.read", tensor, 0, MAX_CHUNK) for _ in range(20)]
    end = time.monotonic() + 5
    (worker,) = board.children()
    while time.monotonic() < end and _alive(worker):
        time.sleep(0.02)
    assert not _alive(worker)
    assert all(board.answer(request) == bytes(MAX_CHUNK) for request in reads)
    with pytest.raises(Refusal) as caught:
        board.answer(run)
    assert caught.value.kind == "timeout"


def tensor_of(board: Board) -> int:
    return board.tensor(BYTES)


def _alive(pid: int) -> bool:
    """Whether it still runs: a zombie, whose parent has not asked yet, does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("end", ["input", "kill"])
def test_no_process_is_left(machine: str, end: str) -> None:
    """At the end of input, or when the supervisor is killed, also while a kernel runs for ever."""
    with Board(machine) as board:
        module = board.load(module_of("spin", machine=machine))["module"]
        board.ask("run", module, "spin", [board.tensor(BYTES)], {})
        board.call("ping", None)
        children = board.children()
        assert children
        if end == "kill":
            board.process.kill()
        else:
            assert board.process.stdin
            board.process.stdin.close()
        code = board.process.wait(PATIENCE)
        assert code == (-9 if end == "kill" else 0)
        limit = time.monotonic() + 5
        while any(map(_alive, children)) and time.monotonic() < limit:
            time.sleep(0.01)
        assert not any(map(_alive, children))


def test_every_method_of_the_wire_is_served(board: Board) -> None:
    """Each is known: given too many parameters, it says how many it takes."""
    for method in METHODS:
        error = refused(board, method.name, *range(9))
        count = len(method.params.split(", ")) if method.params else 0
        assert error.text == f"{method.name} takes {count} parameters, given 9"
