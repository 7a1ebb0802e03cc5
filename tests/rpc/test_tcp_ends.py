"""TCP: dead ends. A link that is cut or slow, and what is left of a client or a listener."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_rpc import connect, errors, link
from mlc_rpc.record import Opener, Sealer
from mlc_rpc.tcp import TcpTransport
from tests.rpc.listener import PATIENCE, Listener, Relay, descendants, no_runtime, wait_until
from tests.runtime.board import BYTES, module_of

Runtime = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def board(runtime_of: Runtime) -> Iterator[Listener]:
    with Listener(runtime_of("x86_64")) as listener:
        yield listener


@pytest.fixture
def fast_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end is dead after two seconds, in which it has its turn on a busy machine, too."""
    monkeypatch.setattr(link, "BEAT_SECONDS", 0.25)


def test_a_link_cut_in_a_call_is_noticed_at_both_ends(
    fast_heart: None, runtime_of: Runtime
) -> None:
    with Listener(runtime_of("x86_64")) as listener, Relay(listener.port) as relay:
        session = connect(f"tcp://127.0.0.1:{relay.port}", no_runtime, key=listener.key)
        scratch = session.tensor(BYTES)
        module = session.load(module_of("spin"))
        pid = descendants(listener.process.pid)[0]
        wait_until(lambda: len(descendants(listener.process.pid)) == 2, "no worker")

        threading.Timer(3, relay.cut.set).start()  # the heart beats, and keeps it alive, until
        begin = time.monotonic()
        with pytest.raises(errors.Lost) as caught:
            module["spin"](scratch, timeout=600)
        assert 3 + 1.5 < time.monotonic() - begin < PATIENCE
        assert re.sub("; before, [0-9]+ kB/s came through", "", str(caught.value)) == (
            f"no sign of life from the board for 2 s\n  on:  {session.board}, method run\n"
            "  try: check its power and network, then connect again; what was on the board "
            "must be sent again"
        )
        listener.wait_until_idle()
        assert not Path(f"/proc/{pid}").exists()
        assert "nothing from the client for 2000 ms; the session ends" in listener.log
        session.close()


def test_a_hung_board_is_noticed(fast_heart: None, runtime_of: Runtime) -> None:
    with connect("local://", runtime_of) as session:
        time.sleep(0.5)  # idle: only the heart beats
        assert session.ping() > 0
        pid = session.link.transport._child.pid  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(errors.Lost, match="no sign of life from the board"):
            session.call("ping", None, timeout=600)
        assert time.monotonic() - begin < PATIENCE


def test_a_slow_upload_is_no_dead_link(fast_heart: None, board: Listener) -> None:
    with Relay(board.port) as relay:
        session = connect(f"tcp://127.0.0.1:{relay.port}", no_runtime, key=board.key)

        def slowly(data: bytes) -> bytes:
            time.sleep(0.05)
            return data

        relay.to_board = slowly
        array = np.zeros(4 << 20, np.uint8)
        np.testing.assert_array_equal(session.tensor(array).numpy(), array)  # over a second
        session.close()


def test_a_slow_download_is_no_dead_client(fast_heart: None, board: Listener) -> None:
    """The board has written all of it, and hears nothing, long before the client has it."""
    with Relay(board.port) as relay:
        session = connect(f"tcp://127.0.0.1:{relay.port}", no_runtime, key=board.key)
        array = np.arange(1 << 19)
        tensor = session.tensor(array)

        def slowly(data: bytes) -> bytes:
            time.sleep(0.05)
            return data

        relay.to_client = slowly
        np.testing.assert_array_equal(tensor.numpy(), array)  # over three seconds
        session.close()


CLIENT = """
import sys, numpy as np
from pathlib import Path
from mlc_rpc import connect
from tests.runtime.board import BYTES, module_of
url, key, program = sys.argv[1], sys.stdin.buffer.read(32), Path(sys.argv[2])
session = connect(url, lambda machine: program, key=key)
module, scratch = session.load(module_of("spin")), session.tensor(BYTES)
print("ready", flush=True)
module["spin"](scratch, timeout=600)
"""


@pytest.mark.parametrize("url", ["tcp", "local://"])
def test_a_killed_client_leaves_nothing(url: str, runtime_of: Runtime) -> None:
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with Listener(runtime_of("x86_64")) as listener:
        url = listener.url if url == "tcp" else url
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, url, runtime_of("x86_64")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | path,
        )  # fmt: skip
        with client:
            assert client.stdin and client.stdout
            client.stdin.write(listener.key)
            client.stdin.close()
            assert client.stdout.readline() == b"ready\n"
            time.sleep(0.1)
            left = [*descendants(client.pid), *descendants(listener.process.pid)]
            assert len(left) == 2
            client.kill()
        wait_until(lambda: not any(map(_alive, left)), "something is left")


def test_sessions_end_with_the_listener(runtime_of: Runtime) -> None:
    with Listener(runtime_of("x86_64")) as listener:
        session = connect(listener.url, no_runtime, key=listener.key)
        session.load(module_of("add"))
        left = descendants(listener.process.pid)
        assert len(left) == 2
        listener.process.kill()
        wait_until(lambda: not any(map(_alive, left)), "something is left")
        with pytest.raises(errors.Lost):
            session.ping()
        session.close()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class SlowToLeave(socket.socket):
    """A socket whose read takes a moment to come back; `closed_early`: it was closed under it."""

    inside = closed_early = False

    def recv_into(self, *arguments: Any) -> int:
        self.inside = True
        try:
            size = super().recv_into(*arguments)
            time.sleep(0.05)
            return size
        finally:
            self.inside = False

    def close(self) -> None:
        self.closed_early = self.inside
        super().close()


def test_a_connection_is_not_closed_under_a_read() -> None:
    """Else the descriptor's number may be another file's, and the read waits for that one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = SlowToLeave()
        link.connect(server.getsockname())
        transport = TcpTransport("tcp://x", link, Sealer(bytes(32)), Opener(bytes(32)))
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(transport.read(9)))
        reader.start()
        wait_until(lambda: link.inside, "nobody reads")
        transport.close()
        reader.join(PATIENCE)
        assert got == [b""]
        assert not link.closed_early
        transport.close()
