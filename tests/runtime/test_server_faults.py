"""Kernels that go wrong and streams that say anything: what they cost, and what is left."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import msgpack
import numpy as np
import pytest

from mlc_deploy.board.runtime_files import MACHINES
from mlc_rpc.wire import MAX_CHUNK, MAX_MESSAGE, METHODS
from tests.runtime.board import (
    BYTES,
    PATIENCE,
    WEIGHTS,
    Board,
    Gone,
    Refusal,
    X,
    hash_of,
    metadata_of,
    model,
    model_of,
    module_of,
    object_of,
    refused,
)
from tests.runtime.driver import RUNTIME

ADD = module_of("add")


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
    assert 0.3 <= time.monotonic() - begin < PATIENCE
    assert error.kind == "timeout" and error.details["kernel"] == "spin"
    assert error.text == (
        "kernel 'spin' was still running after 300 ms; try: a larger timeout, if it is slow rather "
        "than stuck"
    )
    a = board.tensor(X)
    board.call("run", module, "add", [a, a, a], {"timeout_ms": 60_000})


def test_supervisor_answers_while_a_kernel_runs(board: Board) -> None:
    module = board.load(module_of("spin"))["module"]
    tensor = board.tensor(BYTES)
    run = board.ask("run", module, "spin", [tensor], {"timeout_ms": 3000})
    assert board.call("ping", "beat") == "beat"
    following = board.ask("run", module, "spin", [tensor], {})
    other = board.tensor(X)
    requests: list[tuple[Any, ...]] = [
        ("run", module, "spin", [tensor], {}),
        ("module.load", hash_of(module_of("spin")), None),
        ("module.free", module),
    ]
    for request in requests:
        error = refused(board, *request)
        assert error.kind == "refused" and f"{request[0]}: busy" in error.text
    board.call("tensor.free", tensor)  # in use: its memory stays until the kernel has ended
    np.testing.assert_array_equal(board.numpy(other, X), X)
    with pytest.raises(Refusal) as caught:
        board.answer(run)
    assert caught.value.kind == "timeout"
    with pytest.raises(Refusal) as caught:
        board.answer(following)
    assert caught.value.kind == "refused"
    assert caught.value.text == "run: it did not begin, since the run before it failed"


def test_runs_that_follow_one_another(board: Board) -> None:
    module = board.load(module_of("add", "spin"))["module"]
    a, spun = board.tensor(X), board.tensor(BYTES)
    double = ("run", module, "add", [a, a, a], {"total": True})
    asked = [board.ask(*double)]
    for _ in range(39):
        asked.append(board.ask(*double))
        assert len(board.answer(asked.pop(0))["nanoseconds"]) == 1
    board.answer(asked.pop())
    np.testing.assert_array_equal(board.numpy(a, X), X * np.float32(2**40))
    board.call("tensor.write", a, 0, X.tobytes())

    (worker,) = board.children()  # one that dies before it begins costs nothing
    os.kill(worker, signal.SIGKILL)
    asked = [board.ask(*double), board.ask(*double)]
    assert all(board.answer(each) for each in asked)
    np.testing.assert_array_equal(board.numpy(a, X), 4 * X)

    wrong = board.ask("run", module, "add", [a, a], {})  # what follows runs nevertheless
    after = board.ask(*double)
    with pytest.raises(Refusal, match="kernel 'add' takes"):
        board.answer(wrong)
    board.answer(after)
    np.testing.assert_array_equal(board.numpy(a, X), 8 * X)

    begin = time.monotonic()  # its time counts from where it begins
    first = board.ask("run", module, "add", [a, a, a], {})
    after = board.ask("run", module, "spin", [spun], {"timeout_ms": 300})
    board.answer(first)
    with pytest.raises(Refusal) as caught:
        board.answer(after)
    assert caught.value.kind == "timeout" and caught.value.details["kernel"] == "spin"
    assert 0.3 <= time.monotonic() - begin < PATIENCE

    other = board.load(module_of("add"))["module"]
    first = board.ask("run", module, "spin", [spun], {"timeout_ms": 300})
    error = refused(board, "run", other, "add", [a, a, a], {})
    assert error.kind == "refused" and "run: busy" in error.text
    with pytest.raises(Refusal):
        board.answer(first)


def test_status_of_a_kernel_is_an_error(board: Board) -> None:
    module = board.load(module_of("status"))["module"]
    error = refused(board, "run", module, "status", [board.tensor(BYTES)], {})
    assert error.kind == "crashed"
    assert error.text == "kernel 'status' returned status 1: an access outside its buffer"
    assert error.details == {"signal": "", "kernel": "status", "layer": "", "call": 0}


def test_worker_ended_by_the_system_is_an_error(board: Board) -> None:
    """As when memory runs out: the system picks the worker and ends it by SIGKILL."""
    module = board.load(module_of("spin"))["module"]
    run = board.ask("run", module, "spin", [board.tensor(BYTES)], {})
    (worker,) = board.children()
    with open(f"/proc/{worker}/oom_score_adj") as file:
        assert file.read().strip() == "1000"
    wait_until_running(worker)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(Refusal) as caught:
        board.answer(run)
    assert caught.value.details["signal"] == "SIGKILL"
    assert "kernel 'spin': something else ended it, as the system does when memory runs out" in (
        caught.value.text
    )


def wait_until_running(pid: int) -> None:
    """Until the process has spent some time of its own: then it is in its kernel."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with open(f"/proc/{pid}/stat") as stat:
            if int(stat.read().rsplit(")", 1)[1].split()[11]) >= 3:  # ticks in user mode
                return
        time.sleep(0.01)
    raise TimeoutError("the worker does not work")


def test_worker_killed_while_idle_is_replaced(board: Board) -> None:
    module = board.load(ADD)["module"]
    a = board.tensor(X)
    board.call("run", module, "add", [a, a, a], {})
    (worker,) = board.children()
    os.kill(worker, signal.SIGKILL)
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
    run = board.ask("run", module, "spin", [board.tensor(BYTES)], {"timeout_ms": 200})
    reads = [board.ask("tensor.read", tensor, 0, MAX_CHUNK) for _ in range(20)]
    end = time.monotonic() + PATIENCE
    (worker,) = board.children()
    while time.monotonic() < end and _alive(worker):
        time.sleep(0.02)
    assert not _alive(worker)
    assert all(board.answer(request) == bytes(MAX_CHUNK) for request in reads)
    with pytest.raises(Refusal) as caught:
        board.answer(run)
    assert caught.value.kind == "timeout"


def _alive(pid: int) -> bool:
    """Whether it still runs: a zombie, whose parent has not asked yet, does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_client_without_heartbeat_is_dead() -> None:
    with Board() as board:
        module = board.load(module_of("spin"))["module"]
        board.call("heartbeat", 1500)
        board.ask("run", module, "spin", [board.tensor(BYTES)], {})
        for _ in range(8):
            time.sleep(0.25)
            begin = time.monotonic()
            assert board.call("ping", 1) == 1
        (worker,) = board.children()
        with pytest.raises(Gone):
            board.receive(PATIENCE)
        assert time.monotonic() - begin >= 1.5
        assert board.process.wait(PATIENCE) == 1 and not _alive(worker)
    with Board() as board:
        board.call("heartbeat", 1000)
        board.call("heartbeat", 0)
        time.sleep(1.5)
        assert board.call("ping", 1) == 1


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
        limit = time.monotonic() + PATIENCE
        while any(map(_alive, children)) and time.monotonic() < limit:
            time.sleep(0.01)
        assert not any(map(_alive, children))


def test_method_table_is_that_of_the_wire(board: Board) -> None:
    """The same names in the same order; each, given too much, says how many parameters it takes."""
    source = (RUNTIME / "src" / "serve.c").read_text()
    assert re.findall(r'^    \{"([a-z.]+)", ', source, re.MULTILINE) == [m.name for m in METHODS]
    for method in METHODS:
        error = refused(board, method.name, *range(9))
        count = len(method.params.split(", ")) if method.params else 0
        assert error.text == f"{method.name} takes {count} parameters, given 9"
