"""Questions to a person, in a real terminal: seen, without echo, asked once, in no record."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pexpect
import pytest

from tests.odd.world import PASSWORD, World, url
from tests.rpc.test_ssh import RELAY

pytestmark = pytest.mark.odd
PROGRAM = [sys.executable, "-m", "mlc_deploy.cli"]
PATIENCE = 120  # seconds, on a busy machine
QUIET_SECONDS = 1.5  # a live display would write ten times a second
SECRET = "open sesame"


@pytest.fixture
def port(users: World) -> Iterator[int]:
    """Of a server that wants passwords, and knows no keys."""
    with users.server("PasswordAuthentication yes", "PubkeyAuthentication no") as port:
        yield port


class Terminal:
    """A terminal in which `mlc-deploy` runs. `shown`: all that it was sent."""

    def __init__(self, *words: str) -> None:
        self.child = pexpect.spawn(
            PROGRAM[0], [*PROGRAM[1:], *words], encoding="utf-8", timeout=PATIENCE,
            dimensions=(24, 100), env={**os.environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        self.shown = ""

    def asks(self, question: str) -> None:
        """Waits for a question, which stays on the screen and lets nothing typed be seen."""
        self.child.expect_exact(question)
        self.shown += self.child.before + self.child.after
        began = time.monotonic()
        while time.monotonic() - began < QUIET_SECONDS:
            try:
                after = self.child.read_nonblocking(1000, 0.2)
            except pexpect.TIMEOUT:
                continue
            self.shown += after
            assert not after.strip(), f"something writes over the question: {after!r}"

    def types(self, text: str, echo: bool = False) -> None:
        if not echo:
            self.child.waitnoecho(5)
        assert self.child.getecho() == echo
        self.child.sendline(text)

    def ends(self) -> int:
        self.child.expect(pexpect.EOF)
        self.shown += self.child.before
        self.child.close()
        return int(self.child.exitstatus)


def test_a_password_under_a_live_display(port: int, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    terminal = Terminal("--board", url("bash", port), "--json", str(record))
    terminal.asks("bash@127.0.0.1's password: ")
    terminal.types("wrong " + PASSWORD)
    terminal.asks("bash@127.0.0.1's password: ")
    terminal.types(PASSWORD)
    assert terminal.ends() == 0, terminal.shown
    assert PASSWORD not in terminal.shown and PASSWORD not in record.read_text()
    assert terminal.shown.count("password: ") == 2


def test_a_password_is_asked_once_for_two_connections(port: int) -> None:
    terminal = Terminal("board", "info", url("dash", port))  # facts by a shell, then a session
    terminal.asks("dash@127.0.0.1's password: ")
    terminal.types(PASSWORD)
    assert terminal.ends() == 0, terminal.shown
    assert terminal.shown.count("password: ") == 1 and "kernel" in terminal.shown


def test_wrong_passwords(port: int) -> None:
    terminal = Terminal("board", "info", url("dash", port))
    for _ in range(3):
        terminal.asks("password: ")
        terminal.types("wrong")
    assert terminal.ends() == 3
    assert "user dash was not let in: wrong password" in terminal.shown


def test_a_password_for_the_systems_ssh(port: int, users: World) -> None:
    config = users.home / ".ssh/config"
    config.write_text(f"Host behind\n  ProxyCommand {RELAY} 127.0.0.1 {port}\n  User ksh\n"
                      f"  HostKeyAlias [127.0.0.1]:{port}\n")  # fmt: skip
    try:
        terminal = Terminal("--board", "ssh://behind")
        terminal.asks("password: ")
        terminal.types(PASSWORD)
        assert terminal.ends() == 0, terminal.shown
        assert terminal.shown.count("password: ") == 1
    finally:
        config.unlink()


def test_without_a_terminal_nobody_is_asked(port: int) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [*PROGRAM, "board", "info", url("dash", port)], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=PATIENCE, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 3 and time.monotonic() - began < 20
    assert (
        "user dash was not let in: it wants a password, and stdin is not a terminal" in done.stderr
    )
    assert "try: ssh-copy-id" in done.stderr


def test_a_passphrase(users: World) -> None:
    key = users.home / ".ssh/id_ed25519"
    change = ["ssh-keygen", "-q", "-p", "-f", str(key)]
    subprocess.run([*change, "-P", "", "-N", SECRET], check=True, capture_output=True)
    try:
        with users.server() as port:
            terminal = Terminal("--board", url("bash", port))
            terminal.asks(f"passphrase of {key}: ")
            terminal.types(SECRET)
            assert terminal.ends() == 0, terminal.shown
        assert SECRET not in terminal.shown
    finally:
        subprocess.run([*change, "-P", SECRET, "-N", ""], check=True, capture_output=True)


def test_an_unknown_host_key(users: World) -> None:
    known = users.home / ".ssh/known_hosts"
    with users.server() as port:
        before = known.read_text()
        known.write_text("")
        try:
            terminal = Terminal("--board", url("bash", port))
            terminal.asks("is it the board's own? [y/N] ")
            terminal.types("y", echo=True)
            assert terminal.ends() == 0, terminal.shown
            assert f"[127.0.0.1]:{port} ssh-ed25519" in known.read_text()
            known.write_text("")
            terminal = Terminal("board", "info", url("bash", port))
            terminal.asks("is it the board's own? [y/N] ")
            terminal.types("no", echo=True)
            assert terminal.ends() == 3 and "its host key is not known" in terminal.shown
        finally:
            known.write_text(before)


class Factors(paramiko.ServerInterface):
    """Wants a key, then a code; opens nothing."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive"

    def check_auth_interactive(self, username: str, submethods: str) -> object:
        return paramiko.InteractiveQuery("", "", ("Password: ", False), ("Code: ", True))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        self.answers += responses
        return int(paramiko.AUTH_SUCCESSFUL)


def test_a_second_factor(users: World) -> None:
    factors, key = Factors(), paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with (users.home / ".ssh/known_hosts").open("a") as known:
            known.write(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")

        def serve() -> None:
            server = paramiko.Transport(listening.accept()[0])
            server.add_server_key(key)
            server.start_server(server=factors)

        threading.Thread(target=serve, daemon=True).start()
        terminal = Terminal("--board", f"ssh://me@127.0.0.1:{port}")
        terminal.asks("(me@127.0.0.1) Password: ")
        terminal.types(PASSWORD)
        terminal.asks("(me@127.0.0.1) Code: ")
        terminal.types("123456", echo=True)
        assert terminal.ends() == 3
        assert factors.answers == [PASSWORD, "123456"] and PASSWORD not in terminal.shown
        assert "opens no channel for a command" in terminal.shown
