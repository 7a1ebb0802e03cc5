"""Resolves an ssh:// URL by the user's ssh configuration."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from pathlib import Path

import paramiko

from mlc_rpc.errors import Unreachable
from mlc_rpc.transport import SshUrl, parse_url

MAX_JUMPS = 8  # more are taken for a circle


@dataclass(frozen=True, slots=True)
class Host:
    """`alias` is the user's name for the host; `jumps` are the jump hosts, the nearest first.

    `proxy_command`: the host is reached through a program that only the system's ssh starts.
    """

    alias: str
    name: str
    port: int
    user: str
    keys: tuple[str, ...] = ()
    jumps: tuple[Host, ...] = ()
    proxy_command: bool = False

    @property
    def board(self) -> str:
        """Its URL."""
        shown = f"[{self.name}]" if ":" in self.name else self.name
        return f"ssh://{self.user}@{shown}:{self.port}"

    @property
    def known_as(self) -> str:
        """Its name in known_hosts."""
        return self.name if self.port == 22 else f"[{self.name}]:{self.port}"

    def unreachable(self, what: str, attempt: str = "") -> Unreachable:
        return Unreachable(what, board=self.board, attempt=attempt)


def resolve(url: SshUrl) -> Host:
    """Address, user, port, keys and jumps, from the URL and ~/.ssh/config. Raises Unreachable."""
    path = Path("~/.ssh/config").expanduser()
    config = paramiko.SSHConfig()
    if path.exists():
        try:
            config = paramiko.SSHConfig.from_path(str(path))
        except (paramiko.SSHException, OSError) as error:
            board = f"ssh://{url.user + '@' if url.user else ''}{url.host}"
            raise Unreachable(f"cannot read {path}: {error}", board=board) from error
    return _resolve(config, url, 0)


def _resolve(config: paramiko.SSHConfig, url: SshUrl, depth: int) -> Host:
    found: dict[str, str | list[str]] = dict(config.lookup(url.host))
    way = str(found.get("proxyjump", "none"))
    if depth > MAX_JUMPS:
        raise Unreachable(
            f"the ProxyJump of '{url.host}' leads in a circle",
            board=f"ssh://{url.host}",
            attempt="mend ~/.ssh/config",
        )
    jumps: tuple[Host, ...] = ()
    if way.lower() != "none":
        for hop in way.split(","):
            # Only the first has its own jumps; each other is reached from the one before it.
            gate = _resolve(config, _hop(hop.strip()), depth + 1)
            jumps += (*(gate.jumps if not jumps else ()), gate)
    return Host(
        alias=url.host,
        name=str(found.get("hostname", url.host)),
        port=url.port or int(str(found.get("port", 22))),
        user=url.user or str(found.get("user", "")) or getpass.getuser(),
        keys=tuple(k for k in found.get("identityfile", ()) if Path(k).expanduser().exists()),
        jumps=jumps,
        proxy_command=found.get("proxycommand", "none") != "none",
    )


def _hop(text: str) -> SshUrl:
    url = parse_url(text if text.startswith("ssh://") else f"ssh://{text}")
    assert isinstance(url, SshUrl)
    return url
