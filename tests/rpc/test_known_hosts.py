"""known_hosts with lines that are revocations, authorities, or nothing at all."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import paramiko
import pytest

from mlc_rpc.errors import Unreachable
from mlc_rpc.known_hosts import known_hosts
from mlc_rpc.ssh_client import connect_client, is_trusted, trust
from mlc_rpc.ssh_config import Host

KEY, OTHER = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
NAME = "[127.0.0.1]:2200"


# NAME, as `ssh-keygen -H` writes it.
HASHED = paramiko.HostKeys.hash_host(NAME, "YSBzYWx0IG9mIDIwIGJ5dGVzLi4=")


def text(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def written(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")
    return path


def test_lines(tmp_path: Path) -> None:
    hashed = paramiko.HostKeys.hash_host("hidden")
    path = written(
        tmp_path / "known",
        "# a comment", "", f"  {NAME},other {text(KEY)} a comment",
        f"{hashed} {text(KEY)}",
        f"@revoked * {text(OTHER)}",
        f"@cert-authority *.lab {text(OTHER)}",
        "board ssh-ed25519 AAAA!!!", "board ssh-rsa", "board ecdsa-sha2-nistp256 AAAA",
        "board future-kind AAAA", "@unknown board " + text(KEY), "\udcff\udcfe x",
        f"other {text(OTHER)}",
    )  # fmt: skip
    known = known_hosts([str(path), str(tmp_path / "absent")])
    for name in (NAME, "other", "hidden"):
        assert (known.keys.lookup(name) or {})[KEY.get_name()] == KEY
    assert known.keys.lookup("board") is None
    assert known.unread == [f"{path}:{n}" for n in (6, 7, 8, 9, 11, 12)]
    assert known.revocation("any", OTHER) == f"{path}:5" and not known.revocation("any", KEY)
    assert (
        known.hints() == f"\n       beware: {path}:6 is not an entry that can be read, nor 5 others"
    )


@pytest.mark.parametrize(
    ("names", "revoked"),
    [
        (NAME, True), ("*", True), ("other", False), (f"other,{NAME}", True), ("[127.0.*", True),
        (f"*,!{NAME}", False), (HASHED, True), ("|1|a|b", False),
    ],
)  # fmt: skip
def test_names_of_revoked_keys(tmp_path: Path, names: str, revoked: bool) -> None:
    path = written(tmp_path / "known", f"@revoked {names} {text(KEY)}")
    assert bool(known_hosts([str(path)]).revocation(NAME, KEY)) is revoked


def test_what_is_no_file(tmp_path: Path) -> None:
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert known_hosts([str(tmp_path / "pipe")]).unread == []


def refusal(listening: socket.socket, host: Host) -> str:
    """Why a server with KEY is not connected to."""

    def serve() -> None:
        server = paramiko.Transport(listening.accept()[0])
        server.add_server_key(KEY)
        try:
            server.start_server(server=paramiko.ServerInterface())
        except (paramiko.SSHException, EOFError):
            pass

    threading.Thread(target=serve, daemon=True).start()
    with pytest.raises(Unreachable) as caught:
        connect_client(host, 10)
    return str(caught.value)


def test_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    known = tmp_path / ".ssh" / "known_hosts"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host = Host("board", "127.0.0.1", listening.getsockname()[1], "pi")
        revoked = (
            f"its host key is revoked: {KEY.get_name()} {KEY.fingerprint}, at {known}:1\n"
            f"  on:  {host.board}\n"
            "  try: a new host key on the board; whoever has the old one could pose as it"
        )
        entry = f"{host.known_as} {text(KEY)}"
        written(known, f"@revoked {entry}", entry)
        assert refusal(listening, host) == revoked
        with pytest.raises(Unreachable) as caught:
            is_trusted(host, KEY)
        assert str(caught.value) == revoked
        written(known, f"@revoked {entry}", f"{host.known_as} {text(OTHER)}")
        assert refusal(listening, host) == revoked
        written(known, f"{host.known_as} {KEY.get_name()} damaged!")
        assert refusal(listening, host).endswith(
            f"\n       beware: {known}:1 is not an entry that can be read"
        )
        trust(host, KEY)
        assert is_trusted(host, KEY)
        assert "user pi was not let in" in refusal(listening, host)
