"""A whole board: the ssh path from enrolling to a checked model, and what goes wrong on boards."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from paramiko import RSAKey

import mlc_deploy as mlc
from mlc_deploy.cli.main import main
from mlc_rpc import Lost, RpcError, Session, Timeout, Unreachable
from mlc_rpc.ssh import open_shell
from mlc_rpc.ssh_client import server_key
from mlc_rpc.ssh_config import resolve
from mlc_rpc.ssh_scripts import script
from mlc_rpc.transport import SshUrl, parse_url
from tests.machine.machine import Machine
from tests.rpc.test_faults import CRASHES, fault
from tests.runtime.board import X, module_of

pytestmark = pytest.mark.boards

NOTICED_SECONDS = 20.0  # the most that may pass until a dead board is called so
BLOB = np.random.default_rng(3).bytes(6 << 20)


@pytest.fixture
def board(machine: Machine) -> Iterator[Machine]:
    """The machine, which is well again afterwards."""
    yield machine
    shell(machine, "rm -f /disk/full; mount -o remount,rw,exec /disk; rm -rf /var/tmp/mlc* ")
    assert main(["board", "clean", machine.url]) == 0


def shell(machine: Machine, command: str) -> str:
    url = parse_url(machine.url)
    assert isinstance(url, SshUrl)
    opened = open_shell(resolve(url), 20)
    try:
        said = opened.run(script(command), 20)
        return said.out + said.complaint
    finally:
        opened.close()


def lost_within(session: Session, seconds: float) -> RpcError:
    """What is said to the caller of a session that has died."""
    start = time.monotonic()
    with pytest.raises((Lost, Timeout)) as caught:
        while True:
            session.ping(timeout=seconds)
            time.sleep(0.1)
    assert time.monotonic() - start < seconds + 5
    return caught.value


def test_from_enrolling_to_a_checked_model(
    board: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    known = (Path.home() / ".ssh" / "id_ed25519").read_bytes()
    (home / ".ssh" / "id_ed25519").write_bytes(known)
    (home / ".ssh" / "id_ed25519").chmod(0o600)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert main(["--board", board.url]) == 3, "its host key is not known"
    url = parse_url(board.url)
    assert isinstance(url, SshUrl)
    fingerprint = server_key(resolve(url), 20).fingerprint
    other = RSAKey.generate(1024).fingerprint
    assert main(["board", "enroll", "attic", board.url, "--fingerprint", other]) == 3
    assert main(["board", "enroll", "attic", board.url, "--fingerprint", fingerprint]) == 0
    assert main(["board", "enroll", "cellar", board.url, "--fingerprint", other]) == 3
    record = tmp_path / "record.json"
    assert main(["--board", "attic", "--json", str(record)]) == 0
    ran = json.loads(record.read_text())
    assert all(output["ok"] for output in ran["outputs"])
    assert not ran["board"]["emulated"] and ran["board"]["kernel"].endswith("arm64")
    assert main(["board", "info", "attic"]) == 0
    assert main(["board", "doctor", "attic"]) in (0, 1)


def test_a_reset_loses_the_session_and_not_the_cache(board: Machine) -> None:
    with mlc.connect(board.url) as session:
        name = session.put(BLOB)
        shell(board, "sync")
        board.reset()
        assert board.url in str(lost_within(session, NOTICED_SECONDS))
    board.await_boot()
    with mlc.connect(board.url) as session:
        before = session.sent_bytes
        assert session.put(BLOB) == name and session.sent_bytes - before < 1000


def test_power_that_fails_during_an_upload(board: Machine) -> None:
    with mlc.connect(board.url) as session:
        threading.Timer(0.15, board.power_off).start()
        with pytest.raises((Lost, Timeout)):
            for _ in range(200):
                session.put(np.random.default_rng().bytes(1 << 20))
                session.put(BLOB)
    board.power_on()
    with mlc.connect(board.url) as session:
        name = session.put(BLOB)
        assert session.get(name) == BLOB


def test_a_link_that_is_down_for_a_moment(board: Machine) -> None:
    with mlc.connect(board.url) as session:
        board.link(up=False)
        threading.Timer(3, board.link, (True,)).start()
        assert session.ping(timeout=NOTICED_SECONDS) > 1
        array = np.arange(1 << 16)
        np.testing.assert_array_equal(session.tensor(array).numpy(), array)


def test_a_link_that_is_down_for_good(board: Machine) -> None:
    with mlc.connect(board.url) as session:
        board.link(up=False)
        try:
            lost_within(session, NOTICED_SECONDS)
        finally:
            board.link(up=True)
    deadline = time.monotonic() + NOTICED_SECONDS
    while "mlc-runtime" in shell(board, "ps w | grep '[r]untime-' | sed s/runtime/mlc-runtime/"):
        assert time.monotonic() < deadline, "the session's processes are still there"
        time.sleep(1)


def test_a_board_that_hangs(board: Machine) -> None:
    with mlc.connect(board.url) as session:
        board.hang()
        try:
            lost_within(session, NOTICED_SECONDS)
        finally:
            board.go_on()
    with mlc.connect(board.url) as session:
        assert session.ping() < 2


@pytest.mark.parametrize("name", [*CRASHES, "endless loop", "out of memory"])
def test_a_kernel_at_fault_costs_a_worker(board: Machine, name: str) -> None:
    with mlc.connect(board.url) as session:
        module = session.load(module_of("add", machine="aarch64"))
        kept, total = session.tensor(X), session.tensor(0 * X)
        fault(session, "aarch64", name)
        module["add"](kept, kept, total)
        np.testing.assert_array_equal(total.numpy(), 2 * X)


@pytest.mark.parametrize(
    "trouble",
    [
        "head -c 80000000 /dev/zero > /disk/full",
        "mount -o remount,ro /disk",
        "mount -o remount,noexec /disk",
    ],
)
def test_a_disk_that_cannot_be_used(board: Machine, trouble: str) -> None:
    shell(board, trouble)
    with mlc.connect(board.url) as session:
        name = session.put(BLOB)
        assert session.get(name) == BLOB
    assert "runtime-" in shell(board, "ls /var/tmp/mlc-runtime-0")


def test_no_disk_at_all_is_said(board: Machine) -> None:
    shell(board, "mount -o remount,ro /disk; touch /var/tmp/mlc-runtime-0 /dev/shm/mlc-runtime-0")
    try:
        with pytest.raises(Unreachable) as caught:
            mlc.connect(board.url)
    finally:
        shell(board, "rm -f /var/tmp/mlc-runtime-0 /dev/shm/mlc-runtime-0")
    assert "Read-only file system" in str(caught.value)
    assert "the program can be stored nowhere there" in str(caught.value)
