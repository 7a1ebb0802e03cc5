"""The user's known_hosts: which key a host has, and which keys are revoked.

    [@revoked | @cert-authority] name,name,… kind key [comment]

Lines of certificate authorities are not used, and unreadable lines are skipped, as the system's ssh
does. The error for an unknown host mentions both.
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

FILES = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")
MOST_BYTES = 16 << 20
REVOKED, AUTHORITY = "@revoked", "@cert-authority"
# What paramiko raises for a malformed key.
NO_KEY = (paramiko.SSHException, binascii.Error, ValueError, IndexError, TypeError, EOFError)


@dataclass(frozen=True)
class KnownHosts:
    """`revoked`: names, key and place of each revoked key. `unread`: places of unusable lines. A
    place is file:line."""

    keys: paramiko.HostKeys = field(default_factory=paramiko.HostKeys)
    revoked: list[tuple[str, bytes, str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def revocation(self, name: str, key: paramiko.PKey) -> str:
        """The place that revokes this key of a host; "" if none does."""
        blob = key.asbytes()
        found = (at for names, of, at in self.revoked if of == blob and _matches(names, name))
        return next(found, "")

    def hints(self) -> str:
        """The end of an advice: why a host may be unknown."""
        if not self.unread:
            return ""
        others = len(self.unread) - 1
        more = f", nor {others} others" if others else ""
        return f"\n       beware: {self.unread[0]} is no entry that can be read{more}"


def known_hosts(files: Sequence[str] = FILES) -> KnownHosts:
    """Reads the files. Of two keys of one type for a host, the first counts."""
    found = KnownHosts()
    seen: set[tuple[str, str]] = set()
    for path in (Path(file).expanduser() for file in files):
        for number, line in enumerate(_lines(path), 1):
            fields = line.split()
            if fields and not fields[0].startswith("#"):
                _take(found, fields, f"{path}:{number}", seen)
    return found


def _take(found: KnownHosts, fields: list[str], at: str, seen: set[tuple[str, str]]) -> None:
    marker = fields[0] if fields[0].startswith("@") else ""
    if marker == AUTHORITY:
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
        key = paramiko.PKey.from_type_string(kind, blob)
    except paramiko.pkey.UnknownKeyType:  # only the system's ssh can use it
        return
    except NO_KEY:
        found.unread.append(at)
        return
    for name in names.split(","):
        if name and (name, key.get_name()) not in seen:
            seen.add((name, key.get_name()))
            found.keys.add(name, key.get_name(), key)


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
        if _is(pattern.removeprefix("!"), name):
            if negated:
                return False
            hit = True
    return hit


def _is(pattern: str, name: str) -> bool:
    if not pattern.startswith("|1|"):
        return fnmatchcase(name, pattern.replace("[", "[[]"))
    try:
        return bool(paramiko.HostKeys.hash_host(name, pattern) == pattern)
    except NO_KEY:
        return False
