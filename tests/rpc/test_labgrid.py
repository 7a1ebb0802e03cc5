"""labgrid:// against a client that says what labgrid's says, and a real sshd. tests/farm has
labgrid itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlc_rpc import connect, errors, labgrid
from mlc_rpc.facts import read_facts
from mlc_rpc.labgrid import Place, lend, parse_show
from mlc_rpc.transport import LabgridUrl, SshUrl, Transport, parse_url
from tests.rpc.sshd import WHY_NOT, Server, is_here

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(str(ROOT / part) for part in (".", "host", "rpc", "targets"))
PYTHON = sys.executable
URL = "labgrid://attic"
SHOW = """Place 'attic':
  matches:
    */attic/*
  acquired: vm/pi
Acquired resource 'NetworkPowerPort' (vm/attic/NetworkPowerPort/NetworkPowerPort):
  {{'acquired': 'attic',
   'avail': True,
   'params': {{'host': 'http://power/', 'index': '1', 'model': 'simplerest'}}}}
Acquired resource 'NetworkService' (vm/attic/NetworkService/NetworkService):
  {{'acquired': 'attic',
   'params': {{'address': '127.0.0.1',
              'extra': {{'proxy': 'localhost', 'proxy_required': False}},
              'port': {port},
              'username': '{user}'}}}}
"""
CLIENT = """#!/bin/sh
shift 2
echo "$*" >> {folder}/log
if [ -e {folder}/refuses-$1 ]; then cat {folder}/refuses-$1 >&2; exit 1; fi
if [ "$1" = show ]; then cat {folder}/show; fi
"""


@dataclass
class Lab:
    folder: Path

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def shows(self, port: int, user: str = "root") -> None:
        (self.folder / "show").write_text(SHOW.format(port=port, user=user))

    def refuses(self, command: str, words: str) -> None:
        (self.folder / f"refuses-{command}").write_text(words)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    folder = tmp_path / "lab"
    folder.mkdir()
    client = folder / "labgrid-client"
    client.write_text(CLIENT.format(folder=folder))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LG_COORDINATOR", str(folder))  # a lock of its own
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return Lab(folder)


def released(lab: Lab) -> None:
    """Waits until the place has gone back."""
    end = time.monotonic() + 30
    while lab.log()[-1:] != ["release"]:
        assert time.monotonic() < end, lab.log()
        time.sleep(0.05)


def no_runtime(machine: str) -> bytes:
    raise AssertionError(f"the runtime for {machine} was asked for")


@pytest.mark.skipif(not is_here(), reason=WHY_NOT)
def test_a_board_that_is_lent(lab: Lab, server: Server, runtime_of: Callable[[str], Path]) -> None:
    """Sessions share a place, which goes back with the last of them, and not while one is lost."""
    server.trust()
    address = parse_url(server.url)
    assert isinstance(address, SshUrl)
    lab.shows(server.port, address.user or "")
    with connect(URL, runtime_of) as first:
        assert first.board == URL
        assert lab.log() == ["acquire", "show"]
        with connect(URL, runtime_of) as other:
            other.ping()
        assert read_facts(URL, 30) is not None
        first.link.close()
        first.reconnect()
        first.ping()
        assert lab.log() == ["acquire", "show"]
    assert lab.log() == ["acquire", "show", "release"]


def test_a_place_goes_back_when_its_user_dies(lab: Lab) -> None:
    lab.shows(1)
    program = (
        "import sys, time; from mlc_rpc.labgrid import lend, LabgridUrl\n"
        f"sys.executable = {sys.executable!r}\n"
        "lend(LabgridUrl('attic')); print('lent', flush=True); time.sleep(60)"
    )
    user = subprocess.Popen(
        [PYTHON, "-c", program],
        env={**os.environ, "PYTHONPATH": PATHS}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert user.stdout
    assert user.stdout.readline() == b"lent\n"
    with pytest.raises(errors.Unreachable) as caught:  # meanwhile
        lend(LabgridUrl("attic"))
    assert str(caught.value) == (
        f"another command of yours uses the place\n  on:  {URL}\n  try: when it has ended"
    )
    user.send_signal(signal.SIGKILL)
    user.wait()
    released(lab)


def test_a_place_that_was_acquired_by_hand_stays_so(lab: Lab) -> None:
    lab.shows(1)
    lab.refuses("acquire", "labgrid-client: Error: You have already acquired place attic.\n")
    place = lend(LabgridUrl("attic"))
    place.release()
    assert place.keeper.returncode == 0
    assert lab.log() == ["acquire", "show"]


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        (
            "acquire",
            "labgrid-client: Error: Place attic is already acquired by vm/bob.\n",
            "labgrid: Place attic is already acquired by vm/bob.\n  on:  labgrid://attic\n"
            "  try: labgrid-client who, which lists who has what",
        ),
        (
            "acquire",
            "labgrid-client: Error: place pattern attic matches nothing\n",
            "labgrid: place pattern attic matches nothing\n  on:  labgrid://attic\n"
            "  try: labgrid-client places, which lists them",
        ),
        (
            "acquire",
            "ERROR  root: unavailable\nServer error: Error: Could not connect to coordinator\n",
            "labgrid: Could not connect to coordinator\n  on:  labgrid://attic\n"
            "  try: LG_COORDINATOR=host:port, the address of labgrid's coordinator",
        ),
        (
            "show",
            "",
            "labgrid: it does not say why\n  on:  labgrid://attic\n"
            "  try: labgrid-client who, which lists who has what",
        ),
    ],
)
def test_what_labgrid_refuses(lab: Lab, command: str, words: str, message: str) -> None:
    lab.refuses(command, words)
    with pytest.raises(errors.Unreachable) as caught:
        connect(URL, no_runtime)
    assert str(caught.value) == message
    if command == "show":
        released(lab)


def test_without_labgrid(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(lab.folder / "nothing"))
    monkeypatch.setattr(sys, "executable", str(lab.folder / "nothing" / "python"))
    with pytest.raises(errors.Unreachable) as caught:
        connect(URL, no_runtime)
    assert str(caught.value) == (
        "labgrid:// needs labgrid-client, which is not installed\n  on:  labgrid://attic\n"
        "  try: pip install 'mlc-deploy[labgrid]'"
    )


def test_places_without_an_address(lab: Lab) -> None:
    head, _, service = SHOW.format(port=1, user="pi").partition("Acquired resource 'NetworkService")
    for text in ("", head):
        with pytest.raises(errors.Unreachable, match="the place has no NetworkService, which says"):
            parse_show(URL, text)
    for words in ("  [\n", "  {'params': {}}\n", "  {'params': None}\n", "  __import__('os')\n"):
        text = f"Acquired resource 'NetworkService{service.partition(chr(10))[0]}\n{words}"
        with pytest.raises(errors.Unreachable) as caught:
            parse_show(URL, text)
        assert "words on its NetworkService are not understood" in str(caught.value)
    whole = SHOW.format(port=22, user="pi")
    assert parse_show(URL, whole) == (SshUrl("127.0.0.1", "pi", 22), True)
    assert parse_show(URL, whole.replace("PowerPort", "Serial"))[1] is False


def test_names_of_places() -> None:
    for name in ("attic", "lab/rack-3", "+", "a.b_c"):
        assert parse_url(f"labgrid://{name}") == LabgridUrl(name)
    for name in ("", "-p", "a b", "a/", "a//b"):
        with pytest.raises(errors.Unreachable) as caught:
            parse_url(f"labgrid://{name}")
        assert str(caught.value) == (
            f"'{name}' is not the name of a place\n  on:  labgrid://{name}".rstrip()
            + "\n  try: labgrid://attic"
        )


class Silent:
    """A board that opens after so many tries."""

    def __init__(self, tries: int) -> None:
        self.left = tries

    def __call__(self) -> Transport:
        self.left -= 1
        if self.left >= 0:
            raise errors.Unreachable("no answer")
        board: Any = Transport.__new__(Answering)
        return board  # type: ignore[no-any-return]


class Answering(Transport):
    def read(self, limit: int) -> bytes:
        return b""

    def write(self, pieces: object, timeout: float) -> None: ...

    def close(self) -> None: ...

    def last_words(self) -> str:
        return ""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labgrid, "SILENT_SECONDS", 0.02)
    monkeypatch.setattr(labgrid, "BOOT_SECONDS", 2.0)
    monkeypatch.setattr(labgrid, "PAUSE_SECONDS", 0.02)


def test_power_of_a_silent_board_is_switched_once(lab: Lab, hasty: None) -> None:
    lab.shows(1)  # nobody listens there
    place = lend(LabgridUrl("attic"))
    try:
        assert place.first(Silent(6)).board == URL
        assert lab.log() == ["acquire", "show", "power cycle"]
        place.first(Silent(6))
        assert lab.log()[2:] == ["power cycle"] * 2
        with pytest.raises(errors.Unreachable, match="no answer"):
            place.first(Silent(1000))
    finally:
        place.release()
    assert lab.log()[-2:] == ["power cycle", "release"]


@pytest.mark.skipif(not is_here(), reason=WHY_NOT)
def test_power_stays_on_where_the_board_answers(lab: Lab, hasty: None, server: Server) -> None:
    """A host key that is not known is no matter of power."""
    lab.shows(server.port)
    with pytest.raises(errors.Unreachable, match="host key"):
        connect(URL, no_runtime)
    assert lab.log() == ["acquire", "show", "release"]


def test_a_board_without_power_control(lab: Lab, hasty: None) -> None:
    (lab.folder / "show").write_text(
        SHOW.format(port=1, user="pi").replace("NetworkPowerPort", "SerialPort")
    )
    place: Place = lend(LabgridUrl("attic"))
    try:
        with pytest.raises(errors.Unreachable, match="no answer"):
            place.first(Silent(1))
    finally:
        place.release()
    assert lab.log() == ["acquire", "show", "release"]
