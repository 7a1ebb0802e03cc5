"""From a board's URL to a session with it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from mlc_rpc.errors import Unreachable
from mlc_rpc.session import CALL_SECONDS, Session
from mlc_rpc.transport import (
    LabgridUrl,
    LocalUrl,
    QemuUrl,
    Runtime,
    SshUrl,
    TcpUrl,
    Transport,
    parse_url,
)
from mlc_targets.caches import Cache


def connect(
    url: str,
    runtime: Runtime,
    *,
    machine: str | None = None,
    plugin: Path | None = None,
    caches: Sequence[Cache] = (),
    key: bytes | Path | None = None,
    timeout: float = CALL_SECONDS,
) -> Session:
    """A session with the board at `url` (transport.SCHEMES).

    `runtime` gives the board's program for a machine ("aarch64", "arm", "x86_64"). `machine`
    chooses where the URL allows several (qemu://max). `plugin` is QEMU's counting plugin, built for
    this host; it simulates `caches`. `key` is for tcp:// boards; None takes the enrolled one
    (keys.key_path). `timeout`, in seconds, is for connecting and the default of short calls.

    Raises Unreachable, Mismatch.
    """

    board = parse_url(url)
    if isinstance(board, LabgridUrl):
        return _lent_session(board, runtime, timeout)

    def open_within(seconds: float) -> Transport:
        return open_transport(url, runtime, machine, plugin, seconds, key, caches)

    return Session(open_within(timeout), timeout=timeout, reopen=open_within)


def _lent_session(board: LabgridUrl, runtime: Runtime, timeout: float) -> Session:
    """The session keeps the place while the board reboots."""
    if os.name != "posix":
        raise Unreachable(
            "labgrid:// runs on Linux and macOS only", board=f"labgrid://{board.place}"
        )
    from mlc_rpc.labgrid import lend
    from mlc_rpc.ssh import open_ssh

    place = lend(board)

    def open_within(seconds: float) -> Transport:
        return place.opened(lambda: open_ssh(place.address, runtime, seconds))

    try:
        transport = place.first(lambda: open_ssh(place.address, runtime, timeout))
        return Session(transport, timeout=timeout, reopen=open_within, release=place.release)
    except BaseException:
        place.release()
        raise


def open_transport(
    url: str,
    runtime: Runtime,
    machine: str | None = None,
    plugin: Path | None = None,
    timeout: float = CALL_SECONDS,
    key: bytes | Path | None = None,
    caches: Sequence[Cache] = (),
) -> Transport:
    """Starts the board's program. Raises Unreachable."""
    # Each transport is imported on use: paramiko is slow to import, local and qemu need POSIX.
    match parse_url(url):
        case LocalUrl() | QemuUrl() if sys.platform != "linux":
            raise Unreachable(
                f"{url.partition(':')[0]}:// runs on Linux only, "
                f"and this is {platform.system() or sys.platform}",
                board=url,
                attempt="a board reached by ssh://[user@]host[:port]",
            )
        case LocalUrl():
            from mlc_rpc.local import open_local

            return open_local(runtime)
        case QemuUrl() as board:
            from mlc_rpc.qemu import open_qemu

            return open_qemu(board, runtime, machine, plugin, caches)
        case SshUrl() as board:
            from mlc_rpc.ssh import open_ssh

            return open_ssh(board, runtime, timeout)
        case TcpUrl() as board:
            from mlc_rpc.tcp import open_tcp

            return open_tcp(board, key, timeout)
        case LabgridUrl():
            raise AssertionError("a place is lent to a session")
