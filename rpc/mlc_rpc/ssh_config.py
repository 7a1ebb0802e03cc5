"""Resolves an ssh:// URL by the user's ssh configuration, as `ssh -G HOST` prints it.

Where there is no ssh, paramiko reads ~/.ssh/config, which it understands in part.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko

from mlc_rpc.errors import Unreachable
from mlc_rpc.known_hosts import FILES
from mlc_rpc.text import quoted
from mlc_rpc.transport import SshUrl, parse_url

MAX_JUMPS = 8  # more are taken for a circle
READ_SECONDS = 30.0  # of ssh, to read its configuration: it may run programs and ask name servers
FAMILIES = {"inet": int(socket.AF_INET), "inet6": int(socket.AF_INET6)}
# Options that only the system's ssh follows, and what they are without effect.
ONLY_SSH = {
    "proxycommand": "none",
    "knownhostscommand": "none",
    "pkcs11provider": "none",
    "bindaddress": "",
    "bindinterface": "",
}
METHODS = {
    "publickey": "pubkeyauthentication",
    "keyboard-interactive": "kbdinteractiveauthentication",
    "password": "passwordauthentication",
}

Options = Mapping[str, Sequence[str]]  # names in small letters


@dataclass(frozen=True, slots=True)
class Host:
    """`alias` is the user's name for the host; `jumps` are the jump hosts, the nearest first.

    `only_ssh`: the option that only the system's ssh follows, "" if there is none. `agent`: the
    socket of the agent; None for the usual one, "" for none. `only_keys`: of the agent's keys, only
    those of `keys` are offered. `key_alias`: its name in known_hosts. `strict`: what is done with
    an unknown host key: StrictHostKeyChecking. `methods`: how the user may log in. `quiet`: nobody
    is asked.
    """

    alias: str
    name: str
    port: int
    user: str
    keys: tuple[str, ...] = ()
    jumps: tuple[Host, ...] = ()
    only_ssh: str = ""
    agent: str | None = None
    only_keys: bool = False
    key_alias: str = ""
    known_files: tuple[str, ...] = FILES
    strict: str = "ask"
    family: int = 0
    methods: frozenset[str] = frozenset(METHODS)
    quiet: bool = False

    @property
    def board(self) -> str:
        """Its URL."""
        shown = f"[{self.name}]" if ":" in self.name else self.name
        return f"ssh://{self.user}@{shown}:{self.port}"

    @property
    def known_as(self) -> str:
        """Its name in known_hosts."""
        if self.key_alias:
            return self.key_alias
        return self.name if self.port == 22 else f"[{self.name}]:{self.port}"

    @property
    def command(self) -> str:
        """The command that reaches it, to be pasted."""
        jumps = ",".join(f"{hop.user}@{_bracketed(hop.name)}:{hop.port}" for hop in self.jumps)
        way = f"-J {jumps} " if jumps and self.alias == self.name else ""
        place = f"{self.user}@{self.alias if self.only_ssh or self.jumps else self.name}"
        return f"ssh {way}-p {self.port} {place}"

    def unreachable(self, what: str, attempt: str = "") -> Unreachable:
        return Unreachable(what, board=self.board, attempt=attempt)


def resolve(url: SshUrl) -> Host:
    """Address, user, port, keys and jumps, from the URL and the configuration. Raises
    Unreachable."""
    return _resolve(url, 0)


def ssh_command() -> list[str]:
    """The system's ssh, which reads the files of HOME; [] if there is none.

    ssh itself looks into the home of the password file.
    """
    program = shutil.which("ssh")
    own = Path("~/.ssh/config").expanduser()
    if not program:
        return []
    return [program, "-F", str(own)] if _moved_home() and own.exists() else [program]


def home_options(host: Host) -> list[str]:
    """Options by which ssh finds the host keys and the user's keys in HOME."""
    if not _moved_home():
        return []
    files = " ".join(f'"{file}"' for file in host.known_files if not file.startswith("/etc/"))
    return [
        *([f"-oUserKnownHostsFile={files}"] if files else []),
        *(f"-oIdentityFile={key}" for key in host.keys),
    ]


def _resolve(url: SshUrl, depth: int) -> Host:
    if depth > MAX_JUMPS:
        raise _circle(url)
    found = _told_by_ssh(url)
    if found is None:
        found = _read_by_paramiko(url)

    def one(name: str, default: str = "") -> str:
        return next(iter(found.get(name, ())), default)

    def on(name: str, default: str) -> bool:
        return one(name, default).lower() in ("yes", "true")

    jumps: tuple[Host, ...] = ()
    for hop in one("proxyjump", "none").split(",") if one("proxyjump", "none") != "none" else ():
        # Only the first has its own jumps; each other is reached from the one before it.
        gate = _resolve(_hop(hop.strip()), depth + 1)
        jumps += (*(gate.jumps if not jumps else ()), gate)
    keys = (_at_home(path) for path in found.get("identityfile", ()))
    files = [
        file
        for name, usual in (("userknownhostsfile", FILES[:2]), ("globalknownhostsfile", FILES[2:]))
        for file in (_paths(one(name)) if name in found else map(_at_home, usual))
    ]
    return Host(
        alias=url.host,
        name=one("hostname", url.host),
        port=url.port or int(one("port", "22")),
        user=url.user or one("user") or getpass.getuser(),
        keys=tuple(k for k in keys if Path(k).exists() or Path(f"{k}.pub").exists()),
        jumps=jumps,
        only_ssh=next((name for name, no in ONLY_SSH.items() if one(name, no) != no), ""),
        agent=_agent(one("identityagent")),
        only_keys=on("identitiesonly", "no"),
        key_alias=one("hostkeyalias"),
        known_files=tuple(files),
        strict={"true": "yes", "false": "no", "off": "no"}.get(
            strict := one("stricthostkeychecking", "ask").lower(), strict
        ),
        family=FAMILIES.get(one("addressfamily"), 0),
        methods=frozenset(way for way, name in METHODS.items() if on(name, "yes")),
        quiet=on("batchmode", "no"),
    )


def _told_by_ssh(url: SshUrl) -> Options | None:
    """What `ssh -G` says of a host; None where there is no ssh that does. Raises Unreachable."""
    command = ssh_command()
    if not command:
        return None
    # "--": whatever the host is called, it is not an option.
    command += ["-G", *(["-l", url.user] if url.user else [])]
    command += [*(["-p", str(url.port)] if url.port else []), "--", url.host]
    board = f"ssh://{url.user + '@' if url.user else ''}{url.host}"
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=READ_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise Unreachable(
            f"ssh did not read its configuration in {READ_SECONDS:g} s",
            board=board,
            attempt=f"ssh -G {url.host}, to see why",
        ) from error
    except OSError:
        return None
    told = os.fsdecode(done.stdout)
    if done.returncode or not re.search(r"^hostname ", told, re.MULTILINE):
        words = os.fsdecode(done.stderr).strip()
        if "unknown option -- G" in words or "illegal option -- G" in words:
            return None  # before OpenSSH 6.8
        if "jumphost loop" in words:
            raise _circle(url)
        raise Unreachable(
            f"ssh cannot read its configuration: {quoted(words) or 'without a word'}",
            board=board,
            attempt=f"mend ~/.ssh/config until this succeeds: ssh -G {url.host}",
        )
    options: dict[str, list[str]] = {}
    for line in told.splitlines():
        name, _, value = line.partition(" ")
        options.setdefault(name.lower(), []).append(value)
    return options


def _circle(url: SshUrl) -> Unreachable:
    return Unreachable(
        f"the ProxyJump of '{url.host}' leads in a circle",
        board=f"ssh://{url.host}",
        attempt="mend ~/.ssh/config",
    )


def _read_by_paramiko(url: SshUrl) -> Options:
    path = Path("~/.ssh/config").expanduser()
    try:
        config = paramiko.SSHConfig.from_path(str(path)) if path.exists() else paramiko.SSHConfig()
        found = dict(config.lookup(url.host))
    except (paramiko.SSHException, OSError) as error:
        board = f"ssh://{url.user + '@' if url.user else ''}{url.host}"
        raise Unreachable(f"cannot read {path}: {error}", board=board) from error
    found.setdefault("identityfile", [f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ed25519")])
    return {name: [value] if isinstance(value, str) else value for name, value in found.items()}


def _hop(text: str) -> SshUrl:
    url = parse_url(text if text.startswith("ssh://") else f"ssh://{text}")
    assert isinstance(url, SshUrl)
    return url


def _agent(text: str) -> str | None:
    """The socket that IdentityAgent names."""
    if text in ("", "SSH_AUTH_SOCK"):
        return None
    if text.lower() == "none":
        return ""
    return os.environ.get(text[1:], "") if text.startswith("$") else _at_home(text)


def _paths(text: str) -> list[str]:
    """Files as `ssh -G` lists them, without quotes: a path begins after a space."""
    if text.lower() == "none":
        return []
    return [_at_home(path.strip('"')) for path in re.split(r" +(?=[/~\"])", text) if path]


def _moved_home() -> str:
    """The user's home in the password file, where HOME names another one; else ""."""
    if os.name != "posix":
        return ""
    import pwd  # here, for Windows has none

    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""
    return home if Path(home) != Path.home() else ""


def _at_home(path: str) -> str:
    """A path with HOME for ~; also where ssh took the home of the password file."""
    home = _moved_home()
    if home and path.startswith(f"{home}/.ssh/"):
        path = path.replace(home, "~", 1)
    return os.path.expanduser(path)


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name
