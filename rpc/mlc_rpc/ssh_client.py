"""An ssh connection by paramiko: jump hosts, host keys, logging in."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paramiko

from mlc_rpc.errors import Unreachable
from mlc_rpc.known_hosts import KnownHosts, known_hosts
from mlc_rpc.ssh_config import Host
from mlc_rpc.ssh_shell import MOST_SAID, Said, Shell
from mlc_rpc.transport import Buffer, Tail, Transport, join_words

KEEPALIVE_SECONDS = 5
GRACE_SECONDS = 2.0
PACKET_BYTES = 1 << 15  # what paramiko sends at a time
NO_KEYS = "No authentication methods available"  # paramiko's message; it has no class for this
QUESTIONS = 3  # how often a password is asked for

# paramiko's thread logs a traceback for a broken connection, besides raising an exception.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

Link = Any  # a socket or a paramiko.Channel; both are used alike


class NoCommonAlgorithm(Unreachable):
    """The board's ssh server is too old, or too new, for paramiko."""


class ClientShell(Shell):
    """Commands on channels of one connection. `clients`: the jump hosts', then the board's."""

    def __init__(self, host: Host, clients: Sequence[paramiko.SSHClient]) -> None:
        self.host = host
        self._clients = clients

    def run(self, command: str, timeout: float, sent: bytes = b"") -> Said:
        try:
            stdin, stdout, stderr = self._clients[-1].exec_command(command, timeout=timeout)
            with contextlib.suppress(OSError):  # it may fail before it reads; its output says why
                stdin.write(sent)
                stdin.flush()
                stdin.channel.shutdown_write()
            try:
                out = stdout.read(MOST_SAID).decode(errors="replace")
                complaint = stderr.read(MOST_SAID).decode(errors="replace").strip()
            except TimeoutError:
                return Said(-1, "", f"no answer in {timeout:g} s")
            if len(out) == MOST_SAID:  # and nobody reads the rest
                stdout.channel.close()
                return Said(-1, out, complaint)
            return Said(stdout.channel.recv_exit_status(), out, complaint)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._broken(error) from error

    def start(self, command: str) -> Transport:
        transport = self._clients[-1].get_transport()
        try:
            assert transport
            channel = transport.open_session()
            channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._broken(error) from error
        return ClientTransport(self, channel)

    def close(self) -> None:
        for client in reversed(self._clients):
            client.close()

    def _broken(self, error: Exception) -> Unreachable:
        return self.host.unreachable(f"the connection broke: {error or type(error).__name__}")


class ClientTransport(Transport):
    """The program on the board behind a channel. `close` also closes `shell`."""

    def __init__(self, shell: ClientShell, channel: paramiko.Channel) -> None:
        self.board = shell.host.board
        self._shell = shell
        self._tail = Tail()
        self._channel = channel
        self._listener = threading.Thread(
            target=self._listen, name=f"{self.board} stderr", daemon=True
        )
        self._listener.start()

    def read(self, limit: int) -> bytes:
        while True:
            # The channel has one timeout for both directions, and writing sets it.
            with contextlib.suppress(TimeoutError):
                return bytes(self._channel.recv(limit))

    def write(self, pieces: Sequence[Buffer], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for piece in pieces:
            left = memoryview(piece)
            while left:
                self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
                sent = self._channel.send(bytes(left[:PACKET_BYTES]))
                self.moved += sent
                left = left[sent:]

    def close(self) -> None:
        # The end of its input ends the program; closing the channel ends the reader. Both fail if
        # the link is down.
        for end in (self._channel.shutdown_write, self._channel.close):
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                end()
        self._shell.close()

    def last_words(self) -> str:
        ending = ""
        if self._channel.status_event.wait(GRACE_SECONDS):
            status = self._channel.recv_exit_status()
            ending = f"exit status {status}" if status >= 0 else "killed by a signal, or cut off"
        self._listener.join(GRACE_SECONDS)
        return join_words(ending or "the connection broke", self._tail.text())

    def _listen(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                data = self._channel.recv_stderr(4096)
                if not data:
                    return
                self._tail.feed(data)


# -------------------------------------------------------------------------------- connecting


def connect_client(host: Host, timeout: float) -> ClientShell:
    """Raises Unreachable; NoCommonAlgorithm if another client may succeed."""
    clients: list[paramiko.SSHClient] = []
    try:
        for hop in (*host.jumps, host):
            clients.append(_connect(hop, _link(hop, clients, timeout), timeout))
    except BaseException:
        ClientShell(host, clients).close()
        raise
    return ClientShell(host, clients)


def server_key(host: Host, timeout: float) -> paramiko.PKey:
    """The host key that the board shows, not yet trusted. Raises Unreachable."""
    clients: list[paramiko.SSHClient] = []
    transport = None
    try:
        for hop in host.jumps:
            clients.append(_connect(hop, _link(hop, clients, timeout), timeout))
        transport = paramiko.Transport(_link(host, clients, timeout))
        transport.start_client(timeout=timeout)
        return transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError) as error:
        raise _failed(host, error) from error
    finally:
        if transport:
            transport.close()
        ClientShell(host, clients).close()


def is_trusted(host: Host, key: paramiko.PKey) -> bool:
    """Whether known_hosts has this key of the board. Raises Unreachable if it has another one."""
    known_to_user = known_hosts()
    if at := known_to_user.revocation(host.known_as, key):
        raise _revoked(host, key, at)
    known = known_to_user.keys.lookup(host.known_as)
    if known is None or key.get_name() not in known:
        return False
    if known[key.get_name()] == key:
        return True
    raise _changed(host, key, known[key.get_name()])


def trust(host: Host, key: paramiko.PKey) -> Path:
    """Adds the key to the user's known_hosts; returns that file."""
    path = Path("~/.ssh/known_hosts").expanduser()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "rb+") as file:
        old = file.read()
        start = "\n" if old and not old.endswith(b"\n") else ""
        line = f"{start}{host.known_as} {key.get_name()} {key.get_base64()}\n"
        file.write(line.encode())
    return path


def _link(host: Host, clients: Sequence[paramiko.SSHClient], timeout: float) -> Link:
    """A stream to the host: a socket, or a channel of the last jump host."""
    if not clients:
        return _socket(host, timeout)
    transport = clients[-1].get_transport()
    assert transport
    try:
        return transport.open_channel(
            "direct-tcpip", (host.name, host.port), ("127.0.0.1", 0), timeout=timeout
        )
    except (paramiko.SSHException, EOFError) as error:
        gate = host.jumps[-1].board if host.jumps else "the host before it"
        raise host.unreachable(
            f"{gate} cannot connect to {host.name} port {host.port}: {error}",
            "is the board on, and may that host forward (AllowTcpForwarding)?",
        ) from error


def _socket(host: Host, timeout: float) -> socket.socket:
    try:
        # A socket of our own: paramiko leaves Nagle's algorithm on, which costs 40 ms per request.
        link = socket.create_connection((host.name, host.port), timeout)
    except OSError as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror
        raise host.unreachable(
            f"cannot connect to {host.name} port {host.port}: {reason}",
            f"ping {host.name}; is the board on, on this network, and running an ssh server?",
        ) from error
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # it has no types
    def __init__(self, host: Host, known: KnownHosts) -> None:
        self.host, self.known = host, known

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        if at := self.known.revocation(self.host.known_as, key):
            raise _revoked(self.host, key, at)
        kind = key.get_name().removeprefix("ssh-").split("-")[0]
        raise self.host.unreachable(
            f"its host key is not known: {key.get_name()} {key.fingerprint}",
            f"mlc-deploy board enroll {self.host.alias} {self.host.board}, and compare the "
            "fingerprint with\n       what the board itself says: "
            f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub{self.known.hints()}",
        )


def _changed(host: Host, key: paramiko.PKey, expected: paramiko.PKey) -> Unreachable:
    return host.unreachable(
        f"its host key has changed: {key.get_name()} {key.fingerprint}; "
        f"{expected.fingerprint} was known",
        f"if the board was set up anew, ssh-keygen -R '{host.known_as}'; "
        "else somebody may stand between",
    )


def _revoked(host: Host, key: paramiko.PKey, at: str) -> Unreachable:
    return host.unreachable(
        f"its host key is revoked: {key.get_name()} {key.fingerprint}, at {at}",
        "a new host key on the board; whoever has the old one could pose as it",
    )


def _failed(host: Host, error: Exception) -> Unreachable:
    what = f"ssh failed: {error or type(error).__name__}"
    return host.unreachable(what, f"ssh -v -p {host.port} {host.user}@{host.name}, which says more")


def _connect(host: Host, link: Link, timeout: float) -> paramiko.SSHClient:
    """A client that is verified, logged in, and kept alive."""
    client, known = paramiko.SSHClient(), known_hosts()
    try:
        keys = known.keys.lookup(host.known_as) or {}
        for kind, key in keys.items():
            if not known.revocation(host.known_as, key):
                client.get_host_keys().add(host.known_as, kind, key)
        client.set_missing_host_key_policy(_RefuseUnknown(host, known))
        try:
            client.connect(
                host.name,
                host.port,
                host.user,
                key_filename=list(host.keys) or None,
                sock=link,
                timeout=timeout,
                banner_timeout=timeout,
                auth_timeout=timeout,
            )
        except paramiko.SSHException as error:
            # Only then: after a wrong host key, a password would go to a stranger.
            refused = isinstance(error, paramiko.AuthenticationException) or NO_KEYS in str(error)
            if not (refused and _log_in_by_password(client, host)):
                raise
        transport = client.get_transport()
        assert transport
        transport.set_keepalive(KEEPALIVE_SECONDS)
        return client
    except paramiko.BadHostKeyException as error:
        at = known.revocation(host.known_as, error.key)
        changed = _changed(host, error.key, error.expected_key)
        failure = _revoked(host, error.key, at) if at else changed
    except paramiko.IncompatiblePeer as error:
        failure = NoCommonAlgorithm(
            f"no common algorithms with its ssh server: {error}",
            board=host.board,
            attempt="a newer ssh server there",
        )
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport = client.get_transport()
        if transport and transport.is_active() and not transport.is_authenticated():
            failure = host.unreachable(
                f"user {host.user} was not let in: {error}",
                f"ssh-copy-id -p {host.port} {host.user}@{host.name}, and ssh-add for a key that "
                "has a passphrase",
            )
        else:
            failure = _failed(host, error)
    except BaseException:
        client.close()
        link.close()
        raise
    client.close()
    link.close()
    raise failure


def _log_in_by_password(client: paramiko.SSHClient, host: Host) -> bool:
    """Asks for a password. Whether it was right; False if there is no terminal."""
    transport = client.get_transport()
    for _ in range(QUESTIONS):
        if not (transport and transport.is_active()) or not sys.stdin or not sys.stdin.isatty():
            return False
        try:
            password = getpass.getpass(f"{host.user}@{host.name}'s password: ")
            transport.auth_password(host.user, password)
            return True
        except paramiko.BadAuthenticationType:  # it takes none
            return False
        except paramiko.AuthenticationException:
            continue
    return False
