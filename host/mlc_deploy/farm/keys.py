"""The keys of a farm, as folders that `mlc-deploy farm keys` makes: one for each machine.

    FOLDER/ca.pem, ca.key                                 the authority; stays where it was made
    FOLDER/scheduler/  ca.pem, cert.pem, cert.key
    FOLDER/member/     ca.pem, cert.pem, cert.key, jobs.key
    FOLDER/user/       ca.pem, cert.pem, cert.key, jobs.pub

A certificate names the role of its holder (`OU`), which both ends of a connection check. `jobs` are
the keys of seal.py. On one machine, where no folder is needed, a user's own processes share a key
that only this user can read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ..errors import FarmError
from .engine import is_loopback, require_distributed
from .seal import KEY_BYTES, new_private, public_of

SCHEDULER, MEMBER, USER = ROLES = ("scheduler", "member", "user")
FOLDER_SETTING = "MLC_FARM_KEYS"  # the environment variable with a folder of keys
YEARS = 5  # that certificates are valid
MAKE = "mlc-deploy farm keys farm-keys"


@dataclass(frozen=True, slots=True)
class Keys:
    """`members`: the public key of calls. `jobs`: the private one, of a member. `folder`: of the
    certificates; None: those of Dask's settings, if any."""

    members: bytes
    jobs: bytes | None
    folder: Path | None

    def security(self) -> Any:
        """Dask's description of the certificates."""
        distributed = require_distributed()
        if self.folder is None:
            return distributed.Security()
        own = {"cert": str(self.folder / "cert.pem"), "key": str(self.folder / "cert.key")}
        sides = [(side, what) for side in ("scheduler", "worker", "client") for what in own]
        return distributed.Security(
            tls_ca_file=str(self.folder / "ca.pem"), require_encryption=True,
            **{f"tls_{side}_{what}": own[what] for side, what in sides},
        )  # fmt: skip


def keys_of(address: str, role: str) -> Keys:
    """The keys with which this process takes part in a farm. Raises FarmError if there are none
    for this role, or if others can read them."""
    url = urlsplit(address)
    folder = _folder()
    if url.scheme == "tls" and folder is not None:
        secret = _private(folder / "jobs.key") if role == MEMBER else None
        public = folder / "jobs.pub"
        try:
            members = public_of(secret) if secret else public.read_bytes() if role == USER else b""
        except OSError as error:
            raise _wrong(folder, role, f"{public.name}: {error.strerror}") from None
        _private(folder / "cert.key", None)
        return Keys(members, secret, folder)
    if not is_loopback(url.hostname or ""):
        raise FarmError(
            "a farm of several machines needs keys, and there are none here",
            where=address,
            mend=f"{MAKE}, then {FOLDER_SETTING}=farm-keys/{role} before this command",
        )
    secret = _own_key()
    return Keys(public_of(secret), secret, None)


def _config() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "mlc-deploy"


def _folder() -> Path | None:
    """The folder of keys: that of the environment variable, else the default one if it exists."""
    named = os.environ.get(FOLDER_SETTING)
    if named:
        return Path(named)
    default = _config() / "farm"
    return default if default.is_dir() else None


def _own_key() -> bytes:
    """The key that this user's processes on this machine share; made when it is missing."""
    path = _config() / "farm-own.key"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{uuid4().hex}")
        _write(part, new_private(), secret=True)
        with suppress(FileExistsError):  # another process was first
            os.link(part, path)
        part.unlink()
    return _private(path)


def _private(path: Path, length: int | None = KEY_BYTES) -> bytes:
    """A secret of a file that only its owner can read. Raises FarmError."""
    try:
        with path.open("rb") as file:
            about, content = os.fstat(file.fileno()), file.read()
    except OSError as error:
        role = MEMBER if path.name == "jobs.key" else path.parent.name
        raise _wrong(path.parent, role, f"{path.name}: {error.strerror}") from None
    if os.name == "posix" and (about.st_uid != os.geteuid() or about.st_mode & 0o077):
        raise FarmError("other users may use this key", where=str(path), mend=f"chmod 600 {path}")
    if length is not None and len(content) != length:
        raise FarmError(
            f"a key has {length} bytes, this one {len(content)}", where=str(path), mend=MAKE
        )
    return content


def _wrong(folder: Path, role: str, why: str) -> FarmError:
    return FarmError(
        f"these are not keys of a {role}: {why}",
        where=str(folder),
        mend=f"{MAKE}, then {FOLDER_SETTING}=farm-keys/{role}",
    )


def make_keys(folder: Path, members: Sequence[str], users: Sequence[str]) -> list[Path]:
    """Makes the keys of a farm, or of more members and users of a farm that has some; the folders
    that are new. Raises FarmError if a folder is there already, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    first = not (folder / "ca.key").exists()
    named = [(MEMBER, name) for name in members] + [(USER, name) for name in users]
    if first:
        _make_authority(folder)
        _write(folder / "jobs.key", new_private(), secret=True)
        roles = {role for role, _ in named}
        named = [(SCHEDULER, "")] + [(r, "") for r in (MEMBER, USER) if r not in roles] + named
    made = []
    for role, name in named:
        own = folder / (f"{role}-{name}" if name else role)
        if own.exists():
            raise FarmError(
                f"there are keys of this {role} already", where=str(own), mend="another name"
            )
        _make_holder(folder, own, role, name or role)
        made.append(own)
    return made


def _make_authority(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"mlc-deploy farm {uuid4().hex[:8]}")]
    )
    made = _certificate(subject, subject, key.public_key(), authority=True).sign(
        key, hashes.SHA256()
    )
    _write(folder / "ca.key", _pem(key), secret=True)
    _write(folder / "ca.pem", made.public_bytes(serialization.Encoding.PEM))


def _make_holder(folder: Path, own: Path, role: str, name: str) -> None:
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    signer: Any = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    made = _certificate(subject, authority.subject, key.public_key(), authority=False)
    own.mkdir(mode=0o700)
    signed = made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    _write(own / "ca.pem", (folder / "ca.pem").read_bytes())
    _write(own / "cert.pem", signed)
    _write(own / "cert.key", _pem(key), secret=True)
    jobs = _private(folder / "jobs.key")
    if role == MEMBER:
        _write(own / "jobs.key", jobs, secret=True)
    if role == USER:
        _write(own / "jobs.pub", public_of(jobs), secret=True)


def _certificate(subject: x509.Name, issuer: x509.Name, key: Any, authority: bool) -> Any:
    now = datetime.now(UTC)
    basic = x509.BasicConstraints(ca=authority, path_length=0 if authority else None)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(basic, critical=True)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    mode = stat.S_IRUSR | stat.S_IWUSR | (0 if secret else stat.S_IRGRP | stat.S_IROTH)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
