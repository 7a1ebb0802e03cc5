"""One machine per run, in the group `boards`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlc_deploy.cli.main import main
from tests.machine.image import ImageError, image
from tests.machine.machine import Machine, missing_tools


def _ready() -> None:
    """Installs what is missing, as root; else says what to install."""
    packages = missing_tools()
    if packages and os.geteuid() == 0:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        subprocess.run(command, capture_output=True)
        packages = missing_tools()
    if packages:
        pytest.fail(f"the machine needs packages; try: apt install {' '.join(packages)}")


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Booted, and trusted by a user whose HOME is in the environment."""
    _ready()
    try:
        made = image()
    except ImageError as error:
        pytest.fail(str(error))
    folder = tmp_path_factory.mktemp("machine")
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    key = home / ".ssh" / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    before = dict(os.environ)
    os.environ["HOME"] = str(home)
    os.environ.pop("SSH_AUTH_SOCK", None)
    try:
        with Machine(made, folder, Path(f"{key}.pub").read_text()) as machine:
            (home / ".ssh" / "known_hosts").write_text(machine.known_host)
            yield machine
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def board(machine: Machine) -> Iterator[Machine]:
    """The machine, which is well again afterwards."""
    yield machine
    machine.revive()
    machine.shell("rm -f /disk/full*; mount -o remount,rw,exec /disk; rm -rf /var/tmp/mlc* ")
    assert main(["board", "clean", machine.url]) == 0
    machine.shell("sync")  # else a loss of power would bring it all back
