"""Keys of boards that listen on TCP: 32 random bytes each, in files that only their owner may use.

Client and board hold the same key. `make_key` makes it; the user copies it to the board. No message
and no command line shows it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shlex
import stat
from pathlib import Path

from mlc_rpc.errors import Unreachable
from mlc_rpc.own import absolute
from mlc_rpc.wire import KEY_BYTES

MOST_READ = 4096  # bytes read of a key file
PORT = 9190  # only a suggestion


def key_path(name: str) -> Path:
    """The file of a board's key. `name` is the host in its URL: tcp://NAME:port."""
    folder = absolute("XDG_CONFIG_HOME") or Path.home() / ".config"
    return folder / "mlc-deploy" / "keys" / re.sub(r"[^\w.-]", "_", name)


def make_key(name: str) -> Path:
    """Makes a key for a board and returns its file. Raises Unreachable if the file exists."""
    path = key_path(name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    except FileExistsError:
        raise Unreachable(
            f"there is a key for '{name}' already: {path}",
            board=name,
            attempt="remove it, if the board has lost its own; sessions need both",
        ) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return path


def read_key(path: Path, board: str = "") -> bytes:
    """The key in a file. Raises Unreachable when there is none, or other users may read it."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # reading a pipe would block
            raise OSError(errno.EINVAL, "it is not a file")
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            key = file.read(MOST_READ)
    except OSError as error:
        raise Unreachable(
            f"there is no key for this board: {path}: {error.strerror}",
            board=board,
            attempt="enroll the board, or copy the key that it was started with to this file",
        ) from error
    # Windows has no such modes; the user's folders are private there.
    if os.name == "posix" and (about.st_uid != os.geteuid() or about.st_mode & 0o077):
        raise Unreachable(
            f"other users may use the key {path}",
            board=board,
            attempt=f"chown $USER {shlex.quote(str(path))}; chmod 600 {shlex.quote(str(path))}; "
            "if somebody may have read it, a new one",
        )
    return checked(key, board)


def checked(key: bytes, board: str = "") -> bytes:
    """The key. Raises Unreachable when its length is wrong."""
    if len(key) != KEY_BYTES:
        raise Unreachable(
            f"a key has {KEY_BYTES} bytes, this one {len(key)}",
            board=board,
            attempt="a key that enroll made; a passphrase is not a key",
        )
    return key


def how_to_start(name: str, login: str, port: int = PORT) -> str:
    """Commands that bring the key to a board and start the runtime there.

    `login` is what ssh takes ("pi@raspberrypi").
    """
    key = shlex.quote(str(key_path(name)))
    return (
        f"ssh {login} 'umask 077; cat > mlc.key' < {key}\n"
        f"ssh {login} ./mlc-runtime --listen 0.0.0.0:{port} --key-file mlc.key\n"
    )
