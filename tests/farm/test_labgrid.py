"""labgrid:// with labgrid's own coordinator, exporter and client, a real sshd as the board, and a
power switch that is this test."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from mlc_deploy.board.connect import connect
from mlc_rpc import Lost, Unreachable, labgrid
from tests.cli.command import Command
from tests.farm.farms import PATHS, free_port, until
from tests.rpc.sshd import WHY_NOT, Server, is_here, running

pytest.importorskip("labgrid", reason="needs labgrid: scripts/test --only farm")
pytestmark = [pytest.mark.farm, pytest.mark.skipif(not is_here(), reason=WHY_NOT)]
BESIDE = Path(sys.executable).parent
EXPORTER = """
attic:
  NetworkService: {{address: 127.0.0.1, username: {user}, port: {port}}}
  NetworkPowerPort: {{model: simplerest, host: 'http://127.0.0.1:{power}/{{value}}', index: '1'}}
"""


@dataclass
class Lab:
    server: Server
    switched: list[str] = field(default_factory=list)

    def client(self, *arguments: str) -> str:
        done = subprocess.run(
            [BESIDE / "labgrid-client", *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def owner(self) -> str:
        """Who has the place; "None" where nobody has."""
        lines = self.client("-p", "attic", "show").splitlines()
        return next(line.split()[1] for line in lines if line.strip().startswith("acquired:"))

    def switch(self, value: str) -> None:
        """A hung board goes on once its power has been off and on."""
        self.switched.append(value)
        if value == "1":
            os.kill(self.server.process, signal.SIGCONT)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with running(tmp_path) as server:
        monkeypatch.setenv("HOME", str(server.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        server.trust()
        lab = Lab(server)
        with power_switch(lab) as power:
            exporter = tmp_path / "exporter.yaml"
            exporter.write_text(
                EXPORTER.format(user=getpass.getuser(), port=server.port, power=power)
            )
            monkeypatch.setenv("LG_COORDINATOR", at := f"127.0.0.1:{free_port()}")
            with started(tmp_path, "labgrid-coordinator", "-l", at):
                until(lambda: "Could not connect" not in lab.client("places"), "a coordinator")
                with started(tmp_path, "labgrid-exporter", str(exporter)):
                    until(lambda: "NetworkPowerPort" in lab.client("resources"), "an exporter")
                    lab.client("-p", "attic", "create")
                    lab.client("-p", "attic", "add-match", "*/attic/*")
                    yield lab


@contextmanager
def started(folder: Path, program: str, *arguments: str) -> Iterator[None]:
    with (folder / f"{program}.log").open("ab") as log:
        process = subprocess.Popen(
            [BESIDE / program, *arguments], stdout=log, stderr=log, cwd=folder
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def power_switch(lab: Lab) -> Iterator[int]:
    """The port of a server that takes GET /0 and GET /1."""

    class Switch(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lab.switch(self.path.strip("/"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Switch) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_the_command_borrows_a_place(lab: Lab, mlc_deploy: Command) -> None:
    ended = mlc_deploy("--target", "host", "--board", "labgrid://attic")
    assert ended.status == 0, ended.stderr
    assert "labgrid://attic" in ended.stdout
    assert lab.owner() == "None"
    assert lab.switched == []


def test_others_wait_and_are_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect("labgrid://attic") as session:
        session.ping()
        assert lab.owner() == f"{socket.gethostname()}/{getpass.getuser()}"
        with connect("labgrid://attic") as other:
            other.ping()
    assert lab.owner() == "None"
    with monkeypatch.context() as patch:
        patch.setenv("LG_USERNAME", "bob")
        lab.client("-p", "attic", "acquire")
    with pytest.raises(Unreachable) as caught:
        connect("labgrid://attic")
    told = str(caught.value).splitlines()
    assert told[0].startswith("labgrid: Place attic is already acquired by ")
    assert "/bob." in told[0]
    assert told[-1] == "  try: labgrid-client who, which lists who has what"


def test_a_place_that_was_acquired_by_hand_stays_so(lab: Lab) -> None:
    lab.client("-p", "attic", "acquire")
    with connect("labgrid://attic") as session:
        session.ping()
    assert lab.owner() == f"{socket.gethostname()}/{getpass.getuser()}"


def test_a_place_goes_back_when_its_user_dies(lab: Lab) -> None:
    program = (
        "from mlc_deploy.board.connect import connect; import time\n"
        "session = connect('labgrid://attic'); print('lent', flush=True); time.sleep(60)"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)},
    )  # fmt: skip
    assert user.stdout
    assert user.stdout.readline() == b"lent\n"
    assert lab.owner() != "None"
    user.kill()
    user.wait()
    until(lambda: lab.owner() == "None", "the place goes back")


def test_a_hung_board_is_switched_off_and_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, and says nothing any more."""
    monkeypatch.setattr(labgrid, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(labgrid, "ANSWER_SECONDS", 0.5)
    with connect("labgrid://attic", timeout=3.0) as session:
        os.kill(lab.server.process, signal.SIGSTOP)
        session.link.close()
        with pytest.raises(Lost):
            session.ping()
        session.reconnect(60.0)
        array = np.arange(12.0)
        np.testing.assert_array_equal(session.tensor(array).numpy(), array)
    assert lab.switched == ["0", "1"]
    assert lab.owner() == "None"
