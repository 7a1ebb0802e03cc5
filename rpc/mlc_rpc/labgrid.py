"""labgrid://place, a board that labgrid's coordinator lends: a place with a NetworkService.

labgrid's own client acquires the place, gives its board's address and switches its power; ssh then
reaches the board. A separate process, the keeper, waits for this process to end and releases the
place, so that a crash here leaves no place taken.
"""

from __future__ import annotations

import ast
import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mlc_rpc.errors import Unreachable
from mlc_rpc.text import quoted
from mlc_rpc.transport import LabgridUrl, SshUrl, Transport

CLIENT = "labgrid-client"
CLIENT_SECONDS = 60.0  # for one command of the client
POWER_SECONDS = 120.0  # for a command that switches power
SILENT_SECONDS = 20.0  # of silence before a board's power is cycled
BOOT_SECONDS = 120.0  # from a power cycle until the board answers, at most
PAUSE_SECONDS = 1.0  # between two tries
ANSWER_SECONDS = 5.0
SSH_PORT = 22
# The keeper runs a command at the end of its input: when this process ends or closes the pipe.
KEEPER = ("sh", "-c", 'trap "" INT HUP TERM; cat >/dev/null; exec "$@" >/dev/null 2>&1', "sh")

_RESOURCE = re.compile(r"^Acquired resource '[^']*' \(([^)]+)\):\n((?:[ \t]+.*\n?)+)", re.MULTILINE)
_ACQUIRED_BEFORE = "You have already acquired"
_MUTEX = threading.Lock()


@dataclass(eq=False)
class Place:
    """An acquired place. `users` counts the sessions of this process; the last one releases the
    place. `silent`: when its board stopped answering. `switched`: whether its power was cycled
    since then."""

    url: str
    name: str
    address: SshUrl
    powered: bool
    keeper: subprocess.Popen[bytes]
    users: int = 1
    silent: float | None = field(default=None, init=False)
    switched: bool = field(default=False, init=False)

    def release(self) -> None:
        with _MUTEX:
            self.users -= 1
            if self.users:
                return
            del _LENT[self.name]
            assert self.keeper.stdin
            self.keeper.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self.keeper.wait(CLIENT_SECONDS)

    def opened(self, opens: Callable[[], Transport]) -> Transport:
        """The transport that `opens` returns. If the board has been silent for SILENT_SECONDS, its
        power is cycled once before this raises Unreachable."""
        try:
            transport = opens()
        except Unreachable:
            self._look_after()
            raise
        self.silent, self.switched = None, False
        transport.board = self.url
        return transport

    def first(self, opens: Callable[[], Transport]) -> Transport:
        """As `opened`, but waits while the board boots."""
        deadline = time.monotonic() + SILENT_SECONDS + BOOT_SECONDS
        while True:
            try:
                return self.opened(opens)
            except Unreachable:
                if self.silent is None or not self.powered or time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _look_after(self) -> None:
        if self._answers():  # the failure has another cause: a key, a shell
            self.silent = None
            return
        now = time.monotonic()
        self.silent = now if self.silent is None else self.silent
        if self.powered and not self.switched and now - self.silent >= SILENT_SECONDS:
            self.switched = True
            _said(self.url, self.name, "power", "cycle", timeout=POWER_SECONDS)

    def _answers(self) -> bool:
        at = (self.address.host, self.address.port or SSH_PORT)
        try:
            with socket.create_connection(at, ANSWER_SECONDS) as stream:
                return stream.recv(4) == b"SSH-"
        except OSError:
            return False


_LENT: dict[str, Place] = {}  # places of this process, by name


def lend(board: LabgridUrl) -> Place:
    """The place, acquired for this process; each caller must release it. Raises Unreachable."""
    with _MUTEX:
        if (place := _LENT.get(board.place)) is None:
            place = _LENT[board.place] = _acquired(f"labgrid://{board.place}", board.place)
        else:
            place.users += 1
        return place


@contextmanager
def lent(board: LabgridUrl) -> Iterator[Place]:
    """The place, for a while. Raises Unreachable."""
    place = lend(board)
    try:
        yield place
    finally:
        place.release()


def _acquired(url: str, name: str) -> Place:
    mine = _lock(url, name)
    try:
        last = _client(url, "-p", name, "release")
        done = _run(url, name, "acquire")
        if done.returncode and _ACQUIRED_BEFORE in done.stderr:
            last = ["true"]  # the user acquired it by hand: do not release it
        elif done.returncode:
            raise _refused(url, done.stderr)
        keeper = subprocess.Popen(
            [*KEEPER, *last], stdin=subprocess.PIPE, pass_fds=(mine,), start_new_session=True
        )
    finally:
        os.close(mine)  # the keeper holds the lock until the place is released
    try:
        address, powered = parse_show(url, _said(url, name, "show"))
    except BaseException:
        assert keeper.stdin
        keeper.stdin.close()
        keeper.wait()
        raise
    return Place(url, name, address, powered, keeper)


def parse_show(url: str, text: str) -> tuple[SshUrl, bool]:
    """From the output of `labgrid-client show`: the address of the place's NetworkService, and
    whether its power can be switched. Raises Unreachable."""
    service: SshUrl | None = None
    powered = False
    for match in _RESOURCE.finditer(text):
        kind = match[1].split("/")[-2] if match[1].count("/") > 1 else ""
        powered |= kind.endswith("PowerPort") or kind == "PDUDaemonPort"
        if kind != "NetworkService" or service is not None:
            continue
        try:
            given = ast.literal_eval(match[2].strip())["params"]
            service = SshUrl(str(given["address"]), given.get("username"), given.get("port"))
        except (ValueError, SyntaxError, KeyError, TypeError, AttributeError):
            raise Unreachable(
                f"labgrid's words on its NetworkService are not understood: {quoted(match[2])}",
                board=url,
                attempt="ssh://[user@]host[:port], once the place is acquired",
            ) from None
    if service is None:
        raise Unreachable(
            "the place has no NetworkService, which says how to reach its board by ssh",
            board=url,
            attempt="a NetworkService of address and username in the exporter's file, and a match "
            "for it: labgrid-client add-match",
        )
    return service, powered


def _lock(url: str, name: str) -> int:
    """The descriptor of a place's lock file, which one command of this user holds at a time."""
    where = re.sub(r"[^\w.-]", "_", f"{os.environ.get('LG_COORDINATOR', '')}-{name}")
    path = Path(tempfile.gettempdir()) / f"mlc-labgrid-{os.getuid()}-{where}"
    try:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}", board=url) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise Unreachable(
            "another command of yours uses the place", board=url, attempt="when it has ended"
        ) from None
    return held


def _client(url: str, *arguments: str) -> list[str]:
    """A command line of labgrid's client: the one beside this Python, else the one on the PATH."""
    found = shutil.which(CLIENT, path=Path(sys.executable).parent) or shutil.which(CLIENT)
    if found is None:
        raise Unreachable(
            f"labgrid:// needs {CLIENT}, which is not installed",
            board=url,
            attempt="pip install 'mlc-deploy[labgrid]'",
        )
    return [found, *arguments]


def _run(
    url: str, name: str, *arguments: str, timeout: float = CLIENT_SECONDS
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            _client(url, "-p", name, *arguments),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"{CLIENT} {' '.join(arguments)} takes longer than {timeout:g} s", board=url
        ) from None


def _said(url: str, name: str, *arguments: str, timeout: float = CLIENT_SECONDS) -> str:
    """The output of a command. Raises Unreachable when it fails."""
    done = _run(url, name, *arguments, timeout=timeout)
    if done.returncode:
        raise _refused(url, done.stderr)
    return done.stdout


def _refused(url: str, words: str) -> Unreachable:
    *_, last = words.strip().splitlines() or ["it does not say why"]
    what = re.sub(rf"^(?:{CLIENT}: |Server )?[Ee]rror: (?:Error: )?", "", last)
    if "coordinator" in what:
        attempt = "LG_COORDINATOR=host:port, the address of labgrid's coordinator"
    elif "matches nothing" in what:
        attempt = f"{CLIENT} places, which lists them"
    else:
        attempt = f"{CLIENT} who, which lists who has what"
    return Unreachable(f"labgrid: {quoted(what)}", board=url, attempt=attempt)
