"""The user's known_hosts: which key a host has, and which keys are revoked.

    [@revoked | @cert-authority] name,name,… kind key [comment]

A name may be a pattern, or a hash. Lines of certificate authorities are not used here: only the
system's ssh can. Unreadable lines are skipped, as it does. The error for an unknown host mentions
both.
"""

from __future__ import annotations

import binascii
import os
import stat
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import paramiko

FILES = (
    "~/.ssh/known_hosts",
    "~/.ssh/known_hosts2",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/ssh_known_hosts2",
)
MOST_BYTES = 16 << 20
REVOKED, AUTHORITY = "@revoked", "@cert-authority"
# What paramiko raises for a malformed key.
NO_KEY = (paramiko.SSHException, binascii.Error, ValueError, IndexError, TypeError, EOFError)


@dataclass(slots=True)
class Keys:
    """Names, as a line has them, and the key of each line."""

    lines: list[tuple[str, paramiko.PKey]] = field(default_factory=list)

    def lookup(self, name: str) -> dict[str, paramiko.PKey] | None:
        """The keys of a host by kind, the first of each kind; None if none is known."""
        found: dict[str, paramiko.PKey] = {}
        for names, key in self.lines:
            if key.get_name() not in found and _matches(names, name):
                found[key.get_name()] = key
        return found or None


@dataclass(frozen=True)
class KnownHosts:
    """`revoked`: names, key and place of each revoked key. `authorities`: the names for which an
    authority signs. `unread`: places of unusable lines. A place is file:line."""

    keys: Keys = field(default_factory=Keys)
    revoked: list[tuple[str, bytes, str]] = field(default_factory=list)
    authorities: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def revocation(self, name: str, key: paramiko.PKey) -> str:
        """The place that revokes this key of a host; "" if none does."""
        blob = key.asbytes()
        found = (at for names, of, at in self.revoked if of == blob and _matches(names, name))
        return next(found, "")

    def has_authority(self, name: str) -> bool:
        """Whether an authority may have signed the host's key."""
        return any(_matches(names, name) for names in self.authorities)

    def hints(self) -> str:
        """The end of an advice: why a host may be unknown."""
        if not self.unread:
            return ""
        others = len(self.unread) - 1
        more = f", nor {others} others" if others else ""
        return f"\n       beware: {self.unread[0]} is not an entry that can be read{more}"


def known_hosts(files: Sequence[str] = FILES) -> KnownHosts:
    """Reads the files. Of two keys of one type for a host, the first counts."""
    found = KnownHosts()
    for path in (Path(file).expanduser() for file in files):
        for number, line in enumerate(_lines(path), 1):
            fields = line.split()
            if fields and not fields[0].startswith("#"):
                _take(found, fields, f"{path}:{number}")
    return found


def _take(found: KnownHosts, fields: list[str], at: str) -> None:
    marker = fields[0] if fields[0].startswith("@") else ""
    if marker == AUTHORITY:
        found.authorities.append(fields[1] if len(fields) > 1 else "")
        found.unread.append(at)
        return
    try:
        names, kind, text = fields[bool(marker) :][:3]
        blob = b64decode(text, validate=True)
        if marker == REVOKED:
            found.revoked.append((names, blob, at))
            return
        if marker:
            raise ValueError(marker)
        found.keys.lines.append((names, paramiko.PKey.from_type_string(kind, blob)))
    except paramiko.pkey.UnknownKeyType:  # only the system's ssh can use it
        return
    except NO_KEY:
        found.unread.append(at)


def _lines(path: Path) -> list[str]:
    """The lines of a file; [] if it is not a regular file or cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would block
            return []
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def _matches(names: str, name: str) -> bool:
    """Whether a field of names, patterns or hashes matches a host."""
    hit = False
    for pattern in names.split(","):
        negated = pattern.startswith("!")
        if _is(pattern.removeprefix("!"), name.lower()):
            if negated:
                return False
            hit = True
    return hit


def _is(pattern: str, name: str) -> bool:
    if not pattern.startswith("|1|"):
        return fnmatchcase(name, pattern.lower().replace("[", "[[]"))
    try:
        return bool(paramiko.HostKeys.hash_host(name, pattern) == pattern)
    except NO_KEY:
        return False
