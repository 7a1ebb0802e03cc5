"""TCP: who is let in, and what a stranger or somebody in between achieves."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_rpc import connect, errors, keys
from mlc_rpc.auth import Hellos
from mlc_rpc.record import HEAD_BYTES, Opener, Sealer
from mlc_rpc.wire import MAX_GREETING, MAX_RECORD, METHODS, PREAMBLE, VERSION
from tests.rpc.listener import PATIENCE, Listener, Relay, descendants, no_runtime
from tests.runtime.board import X, module_of

Runtime = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def board(runtime_of: Runtime) -> Iterator[Listener]:
    with Listener(runtime_of("x86_64")) as listener:
        yield listener


class Stranger:
    """A client that says whatever a test wants: bytes in, messages out."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        assert self.socket.recv(len(PREAMBLE), socket.MSG_WAITALL) == PREAMBLE

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, method: str, *params: object) -> list[Any] | None:
        """The answer, None when the board hung up instead."""
        self.socket.sendall(msgpack.packb([0, 7, method, params]))
        return self.answer()

    def answer(self) -> list[Any] | None:
        unpacker = msgpack.Unpacker()
        while True:
            for message in unpacker:
                return list(message)
            data = self.receive()
            if not data:
                return None
            unpacker.feed(data)

    def receive(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def hung_up(self) -> bool:
        return self.receive() == b""

    def hello(self, nonce: bytes) -> Hellos:
        answer = self.ask("hello", *VERSION, nonce)
        assert answer and answer[:3] == [1, 7, None]
        return Hellos(VERSION, (answer[3][0], answer[3][1]), nonce, answer[3][2])

    def prove(self, key: bytes) -> Hellos:
        hellos = self.hello(secrets.token_bytes(32))
        answer = self.ask("auth", hellos.mac(key, "client proves"))
        assert answer == [1, 7, None, hellos.mac(key, "board proves")]
        return hellos


# ---- Who is let in ----


def test_a_client_with_the_key_has_a_session(board: Listener) -> None:
    with connect(board.url, no_runtime, key=board.key) as session:
        assert session.board == board.url and session.device.machine == "x86_64"
        module = session.load(module_of("add"))
        a = session.tensor(X)
        module["add"](a, a, a)
        np.testing.assert_array_equal(a.numpy(), 2 * X)
        large = np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8)
        np.testing.assert_array_equal(session.tensor(large).numpy(), large)
        with pytest.raises(errors.Refused) as caught:
            session.call("auth", bytes(32))
        assert caught.value.what == "auth: this stream needs no proof, or has had it"
    board.wait_until_idle()


def test_the_key_that_was_enrolled(
    board: Listener, runtime_of: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(errors.Unreachable) as caught:
        connect(board.url, no_runtime)
    path = tmp_path / "mlc-deploy" / "keys" / "127.0.0.1"
    assert str(caught.value) == (
        f"there is no key for this board: {path}: No such file or directory\n  on:  {board.url}\n"
        "  try: enroll the board, or copy the key that it was started with to this file"
    )
    assert keys.make_key("127.0.0.1") == path and path.stat().st_mode & 0o777 == 0o600
    with Listener(runtime_of("x86_64"), key=path.read_bytes()) as mine:
        with connect(mine.url, no_runtime) as session:
            assert session.ping() > 0
        path.chmod(0o640)
        with pytest.raises(errors.Unreachable, match="other users may use the key"):
            connect(mine.url, no_runtime)
    with pytest.raises(errors.Unreachable, match=r"there is a key for .* already"):
        keys.make_key("127.0.0.1")
    assert str(path) in keys.how_to_start("127.0.0.1", "pi@board")
    assert path.read_bytes().hex() not in keys.how_to_start("127.0.0.1", "pi@board")


def test_another_key_is_refused(board: Listener) -> None:
    with pytest.raises(errors.Unreachable) as caught:
        connect(board.url, no_runtime, key=bytes(32))
    assert str(caught.value) == (
        "the client's key is not taken: it says \"the client's key is not the board's\"\n"
        f"  on:  {board.url}\n"
        "  try: enroll the board again, or copy the key it was started with"
    )
    with pytest.raises(errors.Unreachable, match="a key has 32 bytes, this one 5"):
        connect(board.url, no_runtime, key=b"short")


def test_nothing_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(errors.Unreachable) as caught:
        connect(f"tcp://127.0.0.1:{port}", no_runtime, key=bytes(32))
    assert str(caught.value) == (
        f"nothing listens on port {port} of 127.0.0.1\n  on:  tcp://127.0.0.1:{port}\n"
        f"  try: on the board: mlc-runtime --listen 0.0.0.0:{port} --key-file FILE"
    )


def posing(*said: bytes) -> tuple[socket.socket, str]:
    """A server that says each of these after the next request, and its URL."""

    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionResetError):
            for words in said:
                connection.sendall(words)
                if not connection.recv(4096):
                    return

    threading.Thread(target=serve, daemon=True).start()
    return server, f"tcp://127.0.0.1:{server.getsockname()[1]}"


def response(result: object, number: int = 1) -> bytes:
    packed: bytes = msgpack.packb([1, number, None, result])
    return packed


@pytest.mark.parametrize(
    ("said", "kind", "what"),
    [
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], errors.Unreachable, "what answers there is no mlc-runtime"),
        (
            [PREAMBLE, response([2, 0, bytes(32)])],
            errors.Mismatch,
            "the board's program speaks version 2.0 of the wire, this client version 1.1",
        ),
        (
            [PREAMBLE, response("hi")],
            errors.Unreachable,
            "what answers there is no mlc-runtime, or a busy one: the answer is text of 2 bytes, "
            "where a list of 3 belongs",
        ),
        (
            [PREAMBLE, response([*VERSION, bytes(32)]), response(bytes(32), 2)],
            errors.Unreachable,
            "what answers there does not have this board's key",
        ),
        ([PREAMBLE, b"\xc1"], errors.Unreachable, "what answers there is no mlc-runtime"),
    ],
)
def test_who_only_poses_as_a_board(said: list[bytes], kind: type[Exception], what: str) -> None:
    server, url = posing(*said)
    with server, pytest.raises(kind) as caught:
        connect(url, no_runtime, key=bytes(32), timeout=PATIENCE)
    assert str(caught.value).startswith(what)


def test_a_board_that_says_nothing_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(errors.Unreachable) as caught:
            connect(url, no_runtime, key=bytes(32), timeout=0.2)
    assert "it broke off (timed out)" in caught.value.what


# ---- Starting the runtime ----


def start(program: Path, *options: str | Path, key: bytes = b"") -> tuple[int, str]:
    done = subprocess.run([program, *options], input=key, capture_output=True, timeout=PATIENCE)
    return done.returncode, done.stderr.decode()


def test_no_key_no_port(runtime_of: Runtime, tmp_path: Path) -> None:
    program, path = runtime_of("x86_64"), tmp_path / "key"
    assert start(program, "--listen", "0")[0] == 2
    assert start(program, "--key-stdin", key=bytes(32))[0] == 2
    assert start(program, "--listen", "0", "--key", "0" * 64)[0] == 2
    assert "has less than 32 bytes" in start(program, "--listen", "0", "--key-stdin")[1]
    assert "has more than 32" in start(program, "--listen", "0", "--key-stdin", key=bytes(33))[1]
    with_file = ("--listen", "0", "--key-file", path)
    assert "No such file" in start(program, *with_file)[1]
    path.write_bytes(bytes(32))
    path.chmod(0o644)
    assert start(program, *with_file) == (
        1,
        f"mlc-runtime: users other than its owner may use the key file {path}; "
        f"try: chmod 600 {path}\n",
    )
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    assert "it is a link" in start(program, "--listen", "0", "--key-file", tmp_path / "link")[1]
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        assert "is not a file of the user who runs this" in start(program, *with_file)[1]
    where = ("--listen", "board:1", "--key-stdin")
    assert "is not [ADDRESS:]PORT" in start(program, *where, key=bytes(32))[1]


def test_the_key_is_in_no_argument_and_only_loopback_is_bound(board: Listener) -> None:
    arguments = Path(f"/proc/{board.process.pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{board.process.pid}/environ").read_bytes()
    for secret in (board.key, board.key.hex().encode()):
        assert secret not in arguments and secret not in environment
    sockets = Path("/proc/net/tcp").read_text()
    assert re.search(rf"0100007F:{board.port:04X} 00000000:0000 0A", sockets)
    assert not re.search(rf"00000000:{board.port:04X} ", sockets)


# ---- Before the proof ----


@pytest.mark.parametrize("method", [m.name for m in METHODS if m.name != "hello"])
def test_no_method_answers_before_the_proof(board: Listener, method: str) -> None:
    with Stranger(board.port) as stranger:
        answer = stranger.ask(method, *([None] * method.count(",")))
        assert answer and answer[3] is None
        assert answer[2][:2] == [
            "protocol",
            "hello(major, minor, nonce) comes first, and nothing else",
        ]
        assert stranger.hung_up()
    if method == "auth":
        return
    with Stranger(board.port) as stranger:
        stranger.hello(bytes(32))
        answer = stranger.ask(method)
        assert answer and answer[2][:2] == ["protocol", "auth(proof) comes first, and nothing else"]
        assert stranger.hung_up()


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"GET / HTTP/1.1\r\n\r\n",
        msgpack.packb([2, "hello", [1, 0, bytes(32)]]),
        msgpack.packb([0, 1, "hello", [1, 0, bytes(31)]]),
        msgpack.packb([0, 1, "hello", [9, 0, bytes(32)]]),
        msgpack.packb([0, 1, "hello", [1, 1 << 40, bytes(32)]]),
        msgpack.packb([0, 1, "hello", [1, 0, bytes(32)]]) * 2,
        b"\x94\x00\x01\xa5hello" + b"\x91" * 9,
        b"\x94\x00\x01\xa5hello\x93\x01\x00\xc6\x00\x0f\x00\x00",
        msgpack.packb([0, 1, "hello", [1, 0, bytes(MAX_GREETING)]]),
        b"\x94\x00\x01\xdb\x00\x00\x10\x00" + bytes(MAX_GREETING),
    ],
    ids=lambda data: data[:14].hex(),
)
def test_no_greeting_ends_the_connection(board: Listener, data: bytes) -> None:
    with Stranger(board.port) as stranger:
        stranger.socket.sendall(data)
        while stranger.receive():  # an error, if anything, and then the end
            pass
    assert not descendants(board.process.pid)


@pytest.mark.parametrize("forge", ["reflect", "replay", "another nonce", "bit", "short", "empty"])
def test_forged_proofs_are_refused(board: Listener, forge: str) -> None:
    with Stranger(board.port) as honest:
        seen = honest.prove(board.key)
    with Stranger(board.port) as stranger:
        hellos = stranger.hello(seen.client_nonce)
        assert hellos.board_nonce != seen.board_nonce
        right = hellos.mac(board.key, "client proves")
        proof = {
            "reflect": hellos.mac(board.key, "board proves"),
            "replay": seen.mac(board.key, "client proves"),
            "another nonce": Hellos(VERSION, VERSION, bytes(32), hellos.board_nonce).mac(
                board.key, "client proves"
            ),
            "bit": bytes([right[0] ^ 1, *right[1:]]),
            "short": right[:16],
            "empty": b"",
        }[forge]
        answer = stranger.ask("auth", proof)
        assert answer and answer[2][0] in ("refused", "protocol") and answer[3] is None
        assert stranger.hung_up()


def test_slow_strangers_are_dismissed_and_keep_nobody_out(board: Listener) -> None:
    strangers = [Stranger(board.port) for _ in range(8)]
    begin = time.monotonic()
    with connect(board.url, no_runtime, key=board.key) as session:
        assert session.ping() > 0
    assert strangers[0].hung_up()
    board.wait_for("it was slow to prove its key, and others wait")
    rest = strangers[1:]
    for stranger in rest:
        stranger.socket.send(b"\x94\x00\x01\xda\x0f\x00")  # a method of 3840 characters
    while time.monotonic() - begin < 3:  # a drip does not help
        for stranger in rest:
            with contextlib.suppress(
                ConnectionError
            ):  # the board's three seconds are over sooner than these
                stranger.socket.send(b"a")
        time.sleep(0.2)
    assert all(stranger.hung_up() for stranger in rest)
    board.wait_for("it took too long to prove its key")
    for stranger in strangers:
        stranger.socket.close()


# ---- After it ----


def sealed(stranger: Stranger, key: bytes) -> tuple[Hellos, Sealer, Opener]:
    hellos = stranger.prove(key)
    ours, theirs = hellos.mac(key, "client sends"), hellos.mac(key, "board sends")
    return hellos, Sealer(ours), Opener(theirs)


def record(sealer: Sealer, *message: object) -> bytes:
    (only,) = sealer.seal([msgpack.packb(list(message))])
    return only


def opened(stranger: Stranger, opener: Opener) -> Any:
    while not (payload := opener.next()):
        data = stranger.receive()
        if not data:
            return None
        opener.room()[: len(data)] = data
        opener.took(len(data))
    return msgpack.unpackb(payload)


@pytest.mark.parametrize(
    "forge",
    ["replay", "reflect", "swap", "clear", "no length", "too long", "truncated", "inserted"]
    + [f"bit {n}" for n in (0, 31, 32, 159, 160, 200)],
)
def test_forged_records_end_the_session_unanswered(board: Listener, forge: str) -> None:
    with Stranger(board.port) as stranger:
        hellos, sealer, opener = sealed(stranger, board.key)
        first = record(sealer, 0, 1, "ping", ["first"])
        stranger.socket.sendall(first)
        assert opened(stranger, opener) == [1, 1, None, "first"]
        second, third = (record(sealer, 0, n, "ping", [n]) for n in (2, 3))
        match forge.split():
            case ["replay"]:
                data = first
            case ["reflect"]:
                data = record(Sealer(hellos.mac(board.key, "board sends")), 0, 2, "ping", [2])
            case ["swap"]:
                data = third + second
            case ["clear"]:
                data = msgpack.packb([0, 2, "ping", [2]]) + bytes(HEAD_BYTES)
            case ["no", "length"]:
                data = bytes(HEAD_BYTES)
            case ["too", "long"]:
                data = (MAX_RECORD + 1).to_bytes(4, "big") + bytes(16)
            case ["truncated"]:
                data = second[:-1] + third
            case ["inserted"]:
                data = second[:-1] + b"\0" + second[-1:]
            case [_, bit]:
                at = int(bit) // 8
                data = second[:at] + bytes([second[at] ^ 1 << int(bit) % 8]) + second[at + 1 :]
                data += bytes(MAX_RECORD + 256)  # where the length says more
        stranger.socket.sendall(data)
        assert stranger.hung_up()


def test_a_record_may_hold_any_part_of_messages(board: Listener) -> None:
    with Stranger(board.port) as stranger:
        _, sealer, opener = sealed(stranger, board.key)
        messages = b"".join(msgpack.packb([0, n, "ping", [n]]) for n in range(3))
        for at in range(0, len(messages), 5):
            (piece,) = sealer.seal([messages[at : at + 5]])
            for byte in piece:
                stranger.socket.sendall(bytes([byte]))
        assert [opened(stranger, opener) for _ in range(3)] == [[1, n, None, n] for n in range(3)]


@given(st.lists(st.integers(0, 2 * MAX_RECORD + 1), max_size=4))
def test_records_hold_the_pieces_and_all_but_the_last_are_full(sizes: list[int]) -> None:
    pieces = [bytes([65 + i]) * size for i, size in enumerate(sizes)]
    opener, found = Opener(b"k" * 32), []
    for sent in Sealer(b"k" * 32).seal(pieces):
        opener.room()[: len(sent)] = sent
        opener.took(len(sent))
        found.append(opener.next())
    assert b"".join(found) == b"".join(pieces)
    assert all(len(payload) == MAX_RECORD for payload in found[:-1]) and b"" not in found


@pytest.mark.parametrize("flipped", [0, 4, HEAD_BYTES])
def test_the_client_notices_a_change_on_the_way(board: Listener, flipped: int) -> None:
    with Relay(board.port) as relay:
        session = connect(f"tcp://127.0.0.1:{relay.port}", no_runtime, key=board.key)
        relay.to_client = lambda data: (
            data[:flipped] + bytes([data[flipped] ^ 1]) + data[flipped + 1 :]
        )
        with pytest.raises((errors.ProtocolError, errors.Timeout)) as caught:
            session.call("ping", "x" * 300, timeout=PATIENCE if flipped else 2)  # of a long record
        if flipped >= 4:
            assert caught.value.what == "a record is not as the board sent it"
        session.close()


# ---- The example ----


def test_the_client_of_forty_lines(board: Listener, tmp_path: Path) -> None:
    program = ROOT / "scripts" / "examples" / "wire_client.py"
    text = program.read_text()
    assert len([line for line in text.splitlines() if line]) <= 40
    assert "mlc_rpc" not in text.split('"""', 2)[2]
    (tmp_path / "key").write_bytes(board.key)
    command = [sys.executable, str(program), "127.0.0.1", str(board.port), str(tmp_path / "key")]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, text=True)
    assert (done.stdout, done.stderr) == ("x86_64 b'hello'\n", "")
