"""ssh://, the runtime on a board, spoken to through the stdin and stdout of an ssh channel.

Nothing needs to be installed on the board and no port is opened: the program is sent once, into a
cache of its own under the hash of its content, and lives as long as the channel.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import re
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko

from mlc_rpc.errors import Unreachable
from mlc_rpc.transport import Buffer, Runtime, SshUrl, Tail, Transport, join_words

KEEPALIVE_SECONDS = 15
GRACE_SECONDS = 2.0
PACKET_BYTES = 1 << 15  # what paramiko sends at a time

# Scripts for the board's sh. Answers carry a word of ours, since a login shell may print more.
_PROBE = """
echo mlc-board "$(uname -s)" "$(uname -m)" $(head -c 20 /bin/sh | od -An -v -tu1)
"""
_CACHE = """
umask 077
d="${XDG_CACHE_HOME:-$HOME/.cache}/mlc-deploy"
mkdir -p "$d" && [ ! -L "$d" ] && [ -O "$d" ] && chmod 700 "$d" || exit 3
f="$d/runtime-@hash@"
whole() {
    [ -f "$1" ] && [ ! -L "$1" ] && [ "$(wc -c < "$1")" -eq @size@ ] || return 1
    command -v sha256sum > /dev/null || return 0
    [ "$(sha256sum < "$1" | cut -c 1-64)" = @hash@ ]
}
"""
_CHECK = _CACHE + 'whole "$f" && echo mlc-there || echo mlc-absent\n'
_STORE = (
    _CACHE
    + """
t="$d/.part-@random@"
set -C
cat > "$t" && chmod 700 "$t" && whole "$t" && mv -f "$t" "$f" && echo mlc-there && exit 0
rm -f "$t"
exit 4
"""
)
_START = _CACHE + 'exec "$f"\n'

_ELF_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}
_KERNEL_MACHINES = {"x86_64": "x86_64", "aarch64": "aarch64", "armv7l": "arm", "armv8l": "arm"}


def open_ssh(url: SshUrl, runtime: Runtime, timeout: float) -> Transport:
    """Connects, sends the program for the board's user space where it is not there, starts it.

    Raises Unreachable.
    """
    host = _resolve(url)
    client = _connect(host, timeout)
    try:
        machine = _machine(client, host, timeout)
        program = runtime(machine)
        content = program.read_bytes() if isinstance(program, Path) else program
        _send(client, host, content, timeout)
        return SshTransport(host.board, client, _script(_START, content))
    except paramiko.SSHException as error:
        client.close()
        raise _unreachable(host, f"the connection broke: {error}") from error
    except BaseException:
        client.close()
        raise


@dataclass(frozen=True, slots=True)
class Host:
    """A board's address after the user's ssh configuration was asked."""

    board: str
    name: str
    port: int
    user: str
    keys: tuple[str, ...]


class SshTransport(Transport):
    """The program on the board behind a channel; `client` is closed with it."""

    def __init__(self, board: str, client: paramiko.SSHClient, command: str) -> None:
        self.board = board
        self._client = client
        self._tail = Tail()
        transport = client.get_transport()
        assert transport
        self._channel = transport.open_session()
        self._channel.exec_command(command)
        self._listener = threading.Thread(target=self._listen, name=f"{board} stderr", daemon=True)
        self._listener.start()

    def read(self, limit: int) -> bytes:
        while True:
            # The channel has one timeout for both ways, which a write sets.
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
        # End of input ends the program; closing the channel ends the reader.
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()
        self._channel.close()
        self._client.close()

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


def _resolve(url: SshUrl) -> Host:
    """The address, user, port and keys that ~/.ssh/config gives for the host."""
    path = Path("~/.ssh/config").expanduser()
    board = f"ssh://{url.user + '@' if url.user else ''}{url.host}"
    found: dict[str, str | list[str]] = {}
    if path.exists():
        try:
            found = dict(paramiko.SSHConfig.from_path(str(path)).lookup(url.host))
        except (paramiko.SSHException, OSError) as error:
            raise Unreachable(f"cannot read {path}: {error}", board=board) from error
    for option in ("proxyjump", "proxycommand"):
        if found.get(option, "none") != "none":
            raise Unreachable(
                f"{path} reaches '{url.host}' by {option}, which is not supported",
                board=board,
                attempt=f"ssh -L 2222:{found.get('hostname', url.host)}:22 ..., "
                "then ssh://localhost:2222",
            )
    port = url.port or int(str(found.get("port", 22)))
    user = url.user or str(found.get("user", "")) or getpass.getuser()
    name = str(found.get("hostname", url.host))
    keys = tuple(key for key in found.get("identityfile", ()) if Path(key).expanduser().exists())
    shown = f"[{name}]" if ":" in name else name
    return Host(f"ssh://{user}@{shown}:{port}", name, port, user, keys)


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # it has no types
    def __init__(self, host: Host) -> None:
        self.host = host

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        kind = key.get_name().removeprefix("ssh-").split("-")[0]
        raise _unreachable(
            self.host,
            f"its host key is not known: {key.get_name()} {key.fingerprint}",
            "compare the fingerprint with what the board itself says "
            f"(ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub), then\n"
            f"       ssh-keyscan -t {kind} -p {self.host.port} {self.host.name} "
            ">> ~/.ssh/known_hosts",
        )


def _connect(host: Host, timeout: float) -> paramiko.SSHClient:
    try:
        # A socket of our own: paramiko leaves Nagle's algorithm on, which costs 40 ms per request.
        link = socket.create_connection((host.name, host.port), timeout)
    except OSError as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror
        raise _unreachable(
            host,
            f"cannot connect to {host.name} port {host.port}: {reason}",
            f"ping {host.name}; is the board on, on this network, and running an ssh server?",
        ) from error
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client = paramiko.SSHClient()
    try:
        client.load_system_host_keys()
        with contextlib.suppress(OSError):
            client.load_system_host_keys("/etc/ssh/ssh_known_hosts")
        client.set_missing_host_key_policy(_RefuseUnknown(host))
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
        transport = client.get_transport()
        assert transport
        transport.set_keepalive(KEEPALIVE_SECONDS)
        return client
    except paramiko.BadHostKeyException as error:
        failure = _unreachable(
            host,
            f"its host key has changed: {error.key.get_name()} {error.key.fingerprint}; "
            f"{error.expected_key.fingerprint} was known",
            "if the board was set up anew, ssh-keygen -R "
            f"'{_known_name(host)}'; else somebody may stand between",
        )
    except paramiko.IncompatiblePeer as error:
        failure = _unreachable(
            host, f"no common algorithms with its ssh server: {error}", "a newer ssh server there"
        )
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport = client.get_transport()
        if transport and transport.is_active() and not transport.is_authenticated():
            failure = _unreachable(
                host,
                f"user {host.user} was not let in: {error}",
                f"ssh-copy-id -p {host.port} {host.user}@{host.name}, and ssh-add for a key that "
                "has a passphrase",
            )
        else:
            failure = _unreachable(host, f"ssh failed: {error or type(error).__name__}")
    except BaseException:
        client.close()
        link.close()
        raise
    client.close()
    link.close()
    raise failure


def _machine(client: paramiko.SSHClient, host: Host, timeout: float) -> str:
    """The machine of the board's user space: a 32-bit system on a 64-bit kernel is "arm"."""
    status, said, complaint = _run(client, _PROBE, timeout)
    found = re.search(r"mlc-board (\S+) (\S+)((?: \d+)*)", said)
    if not found:
        raise _unreachable(
            host,
            f"its shell does not run a command (status {status}): {(complaint or said)[-300:]}",
            f"ssh -p {host.port} {host.user}@{host.name} uname -m",
        )
    system, kernel, octets = found[1], found[2], [int(n) for n in found[3].split()]
    machine = _KERNEL_MACHINES.get(kernel, kernel)
    if octets[:4] == [0x7F, *b"ELF"] and len(octets) == 20:
        machine = _ELF_MACHINES.get(octets[18] + 256 * octets[19], machine)
    if system != "Linux":
        raise _unreachable(host, f"it runs {system}, and the runtime needs Linux")
    if machine not in _KERNEL_MACHINES.values():
        known = ", ".join(sorted(set(_KERNEL_MACHINES.values())))
        raise _unreachable(host, f"there is no runtime for its user space, {machine}; only {known}")
    return machine


def _send(client: paramiko.SSHClient, host: Host, content: bytes, timeout: float) -> None:
    """Leaves the program in the board's cache."""
    _, said, complaint = _run(client, _script(_CHECK, content), timeout)
    if "mlc-absent" in said:
        _, said, complaint = _run(client, _script(_STORE, content), timeout, content)
    if "mlc-there" not in said:
        raise _unreachable(
            host,
            f"the program cannot be stored there: {complaint or 'its cache is not safe to use'}",
            "~/.cache/mlc-deploy must be a directory of the user's own on a disk with room",
        )


def _script(text: str, content: bytes) -> str:
    filled = text.replace("@hash@", hashlib.sha256(content).hexdigest())
    filled = filled.replace("@size@", str(len(content))).replace("@random@", secrets.token_hex(8))
    return "exec sh -c " + shlex.quote(filled)


def _run(
    client: paramiko.SSHClient, command: str, timeout: float, sent: bytes = b""
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command that is given `sent` on its stdin."""
    if not command.startswith("exec "):
        command = "exec sh -c " + shlex.quote(command)
    stdin, stdout, stderr = client.exec_command(command, timeout=timeout)
    with contextlib.suppress(OSError):  # a command may fail before it reads: its words say why
        stdin.write(sent)
        stdin.flush()
        stdin.channel.shutdown_write()
    try:
        said = stdout.read().decode(errors="replace")
        complaint = stderr.read().decode(errors="replace").strip()
    except TimeoutError:
        return -1, "", f"no answer in {timeout:g} s"
    return stdout.channel.recv_exit_status(), said, complaint


def _known_name(host: Host) -> str:
    return host.name if host.port == 22 else f"[{host.name}]:{host.port}"


def _unreachable(host: Host, what: str, attempt: str = "") -> Unreachable:
    return Unreachable(what, board=host.board, attempt=attempt)
