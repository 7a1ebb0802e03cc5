"""The runtime as a board serves it: who it is, its tensors, its blobs."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlc_deploy.board.runtime_files import MACHINES, runtime_file
from mlc_rpc.wire import MAX_CHUNK, MAX_MESSAGE, VERSION
from tests.runtime.board import (
    PATIENCE,
    Array,
    Board,
    Refusal,
    hash_of,
    module_of,
    refused,
)

ADD = module_of("add")


# ---- The program ----


def test_version_and_usage() -> None:
    program = str(runtime_file("x86_64"))
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=PATIENCE)
    assert re.fullmatch(
        r"mlc-runtime \d+\.\d+\.\d+ \(x86_64, wire 1\.1, module ABI 1\)\n", said.stdout
    )
    wrong = subprocess.run([program, "--port"], capture_output=True, text=True, timeout=PATIENCE)
    assert wrong.returncode == 2 and wrong.stderr.startswith("usage: ") and not wrong.stdout


@pytest.mark.parametrize("machine", MACHINES)
def test_small(machine: str) -> None:
    """Each program is under 170 KB, and idle its two processes take under 2 MB of memory."""
    assert runtime_file(machine).stat().st_size < 170_000
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
        assert (major, minor) == VERSION and len(nonce) == 32
        assert nonce != board.call("hello", 1, 0, bytes(32))[2]
        assert board.call("describe")["abi"] == 1


def test_another_major_version_is_refused_by_both_numbers() -> None:
    with Board(greet=False) as board:
        error = refused(board, "hello", 2, 3, bytes(32))
        assert error.kind == "refused"
        assert "version 2.3 of the wire" in error.text and "speaks 1.1; try: " in error.text
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


def test_descriptor_is_the_tensors_memory(board: Board) -> None:
    """How a client on the same machine maps a tensor: what either writes, both see."""
    data = np.arange(5000, dtype=np.int32)
    tensor = board.tensor(data)
    process, descriptor = board.call("tensor.descriptor", tensor)
    with open(f"/proc/{process}/fd/{descriptor}", "r+b") as file:
        assert np.array_equal(np.fromfile(file, np.int32, 5000), data)
        file.seek(4 * 17)
        file.write(b"\xff\xff\xff\xff")
    assert board.numpy(tensor, data)[17] == -1
    assert refused(board, "tensor.descriptor", 99).text.startswith("there is no tensor 99")


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
        (("no\xffsuch",), "protocol", "this runtime (wire 1.1) has no method 'no\xffsuch'"),
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


def test_blobs_that_no_module_needs_make_room(board: Board) -> None:
    """The board holds 512; the least recently asked for goes first."""
    module = board.load(ADD)["module"]
    contents = [n.to_bytes(2, "big") for n in range(600)]
    for number, content in enumerate(contents):
        assert board.call("blob.put", hash_of(content), 2, 0, content) == 2
        if number == 400:
            assert board.call("blob.has", hash_of(contents[0])) == [2, True]
    there = [board.call("blob.has", hash_of(content))[1] for content in contents]
    assert sum(there) == 511 and there[0] and there[-1] and not any(there[1:90])
    assert board.call("blob.has", hash_of(ADD))[1]
    board.call("module.free", module)


def test_blob_is_freed_when_no_module_needs_it(board: Board) -> None:
    module = board.load(ADD)["module"]
    assert "1 modules need this blob" in refused(board, "blob.free", hash_of(ADD)).text
    board.call("module.free", module)
    board.call("blob.free", hash_of(ADD))
    assert board.call("blob.has", hash_of(ADD)) == [0, False]
    board.call("blob.free", hash_of(ADD))
