"""Connecting by paramiko: sockets, jump hosts, host keys."""

from __future__ import annotations

import os
import socket
import subprocess
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko

from mlc_rpc import screen
from mlc_rpc.errors import Unreachable
from mlc_rpc.known_hosts import NO_KEY, KnownHosts, known_hosts
from mlc_rpc.ssh_channel import ClientShell
from mlc_rpc.ssh_config import Host, ssh_command
from mlc_rpc.ssh_login import EVERYTHING, NotLetIn, Offer, TooManyKeys, log_in

KEEPALIVE_SECONDS = 5
SCAN_SECONDS = 10.0  # of ssh-keyscan

Link = Any  # a socket or a paramiko.Channel; both are used alike


class OnlySsh(Unreachable):
    """Only the system's ssh may reach the board: its server is too old or too new for paramiko, or
    an authority has signed its key."""


def connect_client(host: Host, timeout: float) -> ClientShell:
    """Raises Unreachable; OnlySsh if the system's ssh may succeed."""
    offer: Offer | None = EVERYTHING
    while True:
        assert offer
        try:
            return _connected(host, timeout, offer)
        except _TooMany as error:
            # The server hung up before it was asked for anything else. Once more, with fewer keys.
            if (offer := offer.fewer) is None:
                raise error.refusal from error


class _TooMany(Exception):
    def __init__(self, refusal: Unreachable) -> None:
        self.refusal = refusal


def _connected(host: Host, timeout: float, offer: Offer) -> ClientShell:
    transports: list[paramiko.Transport] = []
    try:
        for hop in (*host.jumps, host):
            transports.append(_connect(hop, _link(hop, transports, timeout), timeout, offer))
    except BaseException:
        ClientShell(host, transports).close()
        raise
    return ClientShell(host, transports)


def _connect(host: Host, link: Link, timeout: float, offer: Offer) -> paramiko.Transport:
    """A connection that is verified, logged in, and kept alive."""
    transport = None
    try:
        transport = paramiko.Transport(link)
        transport.banner_timeout = transport.auth_timeout = timeout
        known = known_hosts(host.known_files)
        _prefer(transport, known.keys.lookup(host.known_as) or known.keys.lookup(host.name) or {})
        try:
            transport.start_client(timeout=timeout)
            secrets = _verify(host, transport.get_remote_server_key(), known)
            log_in(transport, host, offer, secrets)
        except TooManyKeys as error:
            raise _TooMany(_not_let_in(host, error)) from error
        except NotLetIn as error:
            raise _not_let_in(host, error) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise _failed(host, error) from error
        transport.set_keepalive(KEEPALIVE_SECONDS)
        return transport
    except BaseException:
        if transport:
            transport.close()
        link.close()
        raise


def _link(host: Host, transports: Sequence[paramiko.Transport], timeout: float) -> Link:
    """A stream to the host: a socket, or a channel of the last jump host."""
    if not transports:
        return _socket(host, timeout)
    try:
        return transports[-1].open_channel(
            "direct-tcpip", (host.name, host.port), ("127.0.0.1", 0), timeout=timeout
        )
    except (paramiko.SSHException, EOFError) as error:
        gate = host.jumps[-1].board if host.jumps else "the host before it"
        raise host.unreachable(
            f"{gate} cannot connect to {host.name} port {host.port}: {error}",
            "is the board on, and may that host forward (AllowTcpForwarding)?",
        ) from error


def _socket(host: Host, timeout: float) -> socket.socket:
    refusal: OSError | None = None
    try:
        # A socket of our own: paramiko leaves Nagle's algorithm on, which costs 40 ms per request.
        places = socket.getaddrinfo(host.name, host.port, host.family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise host.unreachable(
            f"cannot connect to {host.name} port {host.port}: {reason}",
            "its address in place of its name, or the name that this prints: "
            f"ssh -G {host.alias} | grep ^hostname",
        ) from error
    for family, kind, protocol, _, address in places:
        link = socket.socket(family, kind, protocol)
        link.settimeout(timeout)
        try:
            link.connect(address)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return link
        except OSError as error:
            refusal = error
            link.close()
    assert refusal
    raise _no_socket(host, refusal) from refusal


def _no_socket(host: Host, error: OSError) -> Unreachable:
    reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror
    attempt = f"ping {host.name}; is the board on, on this network, and running an ssh server?"
    if isinstance(error, ConnectionRefusedError):
        attempt = (
            f"start its ssh server (systemctl enable --now ssh), or the port it listens on: "
            f"ssh://{host.user}@{host.name}:PORT"
        )
    return host.unreachable(f"cannot connect to {host.name} port {host.port}: {reason}", attempt)


# -------------------------------------------------------------------------------- host keys


def is_trusted(host: Host, key: paramiko.PKey, known: KnownHosts | None = None) -> bool:
    """Whether known_hosts has this key of the board. Raises Unreachable if it has another one."""
    known = known or known_hosts(host.known_files)
    if at := known.revocation(host.known_as, key):
        raise _revoked(host, key, at)
    kind = key.get_name()
    if (keys := known.keys.lookup(host.known_as)) and kind in keys:
        if keys[kind] == key:
            return True
        raise _changed(host, key, keys[kind])
    # As ssh: a key that is known for its usual port is its key on another one, too.
    usual = known.keys.lookup(host.name) if not host.key_alias else None
    return bool(usual and usual.get(kind) == key)


def trust(host: Host, key: paramiko.PKey) -> Path:
    """Adds the key to the user's known_hosts; returns that file."""
    path = Path(host.known_files[0] if host.known_files else "~/.ssh/known_hosts").expanduser()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "rb+") as file:
        old = file.read() if path.is_file() else b""
        start = "\n" if old and not old.endswith(b"\n") else ""
        line = f"{start}{host.known_as} {key.get_name()} {key.get_base64()}\n"
        file.write(line.encode())
    return path


def server_key(host: Host, timeout: float) -> paramiko.PKey:
    """The host key that the board shows, not yet trusted. Raises Unreachable."""
    transports: list[paramiko.Transport] = []
    transport = None
    try:
        for hop in host.jumps:
            link = _link(hop, transports, timeout)
            transports.append(_connect(hop, link, timeout, EVERYTHING))
        transport = paramiko.Transport(_link(host, transports, timeout))
        transport.start_client(timeout=timeout)
        return transport.get_remote_server_key()
    except _TooMany as error:
        raise error.refusal from error
    except (paramiko.SSHException, EOFError) as error:
        refusal = _failed(host, error)
        if isinstance(refusal, OnlySsh) and not host.jumps and (key := _scanned(host)):
            return key
        raise refusal from error
    finally:
        if transport:
            transport.close()
        ClientShell(host, transports).close()


def _scanned(host: Host) -> paramiko.PKey | None:
    """The host key by ssh-keyscan, which has key exchanges that paramiko lacks."""
    if not (program := ssh_command()):
        return None
    scan = Path(program[0]).with_name("ssh-keyscan")
    command = [str(scan), "-T", "5", "-p", str(host.port), "--", host.name]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SCAN_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    keys: dict[str, paramiko.PKey] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        with suppress(paramiko.pkey.UnknownKeyType, *NO_KEY):
            _, kind, text = line.split()
            keys[kind] = paramiko.PKey.from_type_string(kind, b64decode(text, validate=True))
    return keys.get("ssh-ed25519") or next(iter(keys.values()), None)


def _prefer(transport: paramiko.Transport, keys: dict[str, paramiko.PKey]) -> None:
    """Asks the server for a key of a kind that is known."""
    options = transport.get_security_options()

    def known(kind: str) -> bool:
        return ("ssh-rsa" if kind.startswith("rsa-sha2") else kind) in keys

    options.key_types = sorted(options.key_types, key=lambda kind: not known(kind))


def _verify(host: Host, key: paramiko.PKey, known: KnownHosts) -> bool:
    """Returns whether a password may go to this host. Raises Unreachable, OnlySsh."""
    try:
        if is_trusted(host, key, known):
            return True
    except Unreachable:
        if host.strict != "no" or known.revocation(host.known_as, key):
            raise
        return False
    if known.has_authority(host.known_as) or known.has_authority(host.name):
        raise OnlySsh(
            f"its host key is known to an authority at best: {key.fingerprint}", board=host.board
        )
    if host.strict not in ("no", "accept-new") and not _agreed(host, key):
        raise _unknown(host, key, known)
    with suppress(OSError):
        trust(host, key)
    return True


def _agreed(host: Host, key: paramiko.PKey) -> bool:
    """Whether a person says that the key is the board's."""
    if host.strict != "ask" or host.quiet or not screen.can_ask():
        return False
    question = (
        f"host key of {host.board}, not seen before: {key.get_name()} {key.fingerprint}; "
        "is it the board's own? [y/N]"
    )
    try:
        return screen.ask(question, echo=True).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _unknown(host: Host, key: paramiko.PKey, known: KnownHosts) -> Unreachable:
    kind = key.get_name().removeprefix("ssh-").split("-")[0]
    return host.unreachable(
        f"its host key is not known: {key.get_name()} {key.fingerprint}",
        f"mlc-deploy board enroll {host.alias} {host.board}, and compare the "
        "fingerprint with\n       what the board itself says: "
        f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub{known.hints()}",
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


# -------------------------------------------------------------------------------- refusals


def _not_let_in(host: Host, error: NotLetIn) -> Unreachable:
    return host.unreachable(
        f"user {host.user} was not let in: {error}",
        error.attempt
        or f"ssh-copy-id -p {host.port} {host.user}@{host.name}, and ssh-add for a key that "
        "has a passphrase",
    )


def _failed(host: Host, error: Exception) -> Unreachable:
    if isinstance(error, paramiko.IncompatiblePeer):
        return OnlySsh(
            f"no common algorithms with its ssh server: {error}",
            board=host.board,
            attempt="a newer ssh server there",
        )
    what = f"ssh failed: {error or type(error).__name__}"
    return host.unreachable(what, f"ssh -v -p {host.port} {host.user}@{host.name}, which says more")
