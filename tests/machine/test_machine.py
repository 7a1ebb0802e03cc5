"""A whole board: the ssh path from enrolling to a checked model, and what goes wrong on boards."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from paramiko import RSAKey

import mlc_deploy as mlc
from mlc_deploy.cli.main import main
from mlc_rpc import Unreachable
from mlc_rpc.ssh_client import server_key
from mlc_rpc.ssh_config import resolve
from mlc_rpc.transport import SshUrl, parse_url
from tests.machine.machine import Machine
from tests.machine.test_faults import nothing_left
from tests.rpc.test_faults import CRASHES, RECOVERY_SECONDS, fault
from tests.runtime.board import X, module_of

pytestmark = pytest.mark.boards

NOTICED_SECONDS = 20.0  # the most that may pass until a dead board is called so
BLOB = np.random.default_rng(3).bytes(6 << 20)


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


def test_a_link_that_is_down_for_a_moment(board: Machine) -> None:
    with mlc.connect(board.url) as session:
        board.link(up=False)
        threading.Timer(3, board.link, (True,)).start()
        assert session.ping(timeout=NOTICED_SECONDS) > 1
        array = np.arange(1 << 16)
        np.testing.assert_array_equal(session.tensor(array).numpy(), array)


def held(board: Machine) -> int:
    """Descriptors of all processes of the session."""
    told = board.shell(
        "for p in /proc/[0-9]*; do case $(ls -l $p/exe) in *runtime-*) ls $p/fd;; esac; done"
        " 2> /dev/null"
    )
    return len(told.split())


@pytest.mark.parametrize("name", [*CRASHES, "endless loop", "out of memory"])
def test_a_kernel_at_fault_costs_a_worker(board: Machine, name: str) -> None:
    with nothing_left(board) as slack, mlc.connect(board.url) as session:
        module = session.load(module_of("add", machine="aarch64"))
        kept, total = session.tensor(X), session.tensor(0 * X)
        fault(session, "aarch64", name)
        module["add"](kept, kept, total)  # a worker has descriptors, too
        before = held(board)
        fault(session, "aarch64", name)
        began = time.monotonic()
        module["add"](kept, kept, total)
        assert time.monotonic() - began < RECOVERY_SECONDS + slack
        np.testing.assert_array_equal(total.numpy(), 2 * X)
        np.testing.assert_array_equal(kept.numpy(), X)
        # A fault leaves no more behind than the one before it, give or take the worker's socket.
        assert held(board) <= before + 1


@pytest.mark.parametrize(
    "trouble",
    [
        "head -c 80000000 /dev/zero > /disk/full",
        "mount -o remount,ro /disk",
        "mount -o remount,noexec /disk",
    ],
)
def test_a_disk_that_cannot_be_used(board: Machine, trouble: str) -> None:
    board.shell(trouble)
    with mlc.connect(board.url) as session:
        name = session.put(BLOB)
        assert session.get(name) == BLOB
    assert "runtime-" in board.shell("ls /var/tmp/mlc-runtime-0")


def test_no_disk_at_all_is_said(board: Machine) -> None:
    board.shell("mount -o remount,ro /disk; touch /var/tmp/mlc-runtime-0 /dev/shm/mlc-runtime-0")
    try:
        with pytest.raises(Unreachable) as caught:
            mlc.connect(board.url)
    finally:
        board.shell("rm -f /var/tmp/mlc-runtime-0 /dev/shm/mlc-runtime-0")
    assert "Read-only file system" in str(caught.value)
    assert "the program can be stored nowhere there" in str(caught.value)


MAPS = "for p in /proc/[0-9]*; do case $(ls -l $p/exe) in *runtime-*) cat $p/maps;; esac; done"


def test_code_far_from_what_it_calls(board: Machine) -> None:
    """No branch and no ADRP reaches from where a real kernel maps an object to the program."""
    with mlc.connect(board.url) as session:
        module = session.load(module_of("exp64", machine="aarch64"))
        a, b = session.tensor(X / 16), session.empty((64,))
        module["exp64"](a, b)
        np.testing.assert_allclose(b.numpy(), np.exp(X / 16), rtol=2e-7)
        maps = board.shell(MAPS).splitlines()
    code = [line.split() for line in maps if " r-xp " in line and "[" not in line]
    programs = [int(words[0].split("-")[0], 16) for words in code if "/runtime-" in words[-1]]
    images = [int(words[0].split("-")[0], 16) for words in code if "/" not in words[-1]]
    assert programs and images
    assert min(abs(image - max(programs)) for image in images) > 4 << 30
