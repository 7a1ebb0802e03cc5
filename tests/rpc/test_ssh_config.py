"""What `ssh HOST` reaches, `ssh://HOST` reaches: options of the configuration, one by one."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mlc_rpc import connect, errors
from mlc_rpc.known_hosts import known_hosts
from mlc_rpc.ssh_config import resolve
from mlc_rpc.transport import SshUrl, parse_url
from tests.rpc.sshd import WHY_NOT, Server, is_here

Files = Callable[[str], Path]
pytestmark = pytest.mark.skipif(not is_here(), reason=WHY_NOT)


def configured(server: Server, text: str) -> None:
    (server.home / ".ssh/config").write_text(text)


def reached(server: Server, name: str, runtime_of: Files) -> None:
    with connect(f"ssh://{name}", runtime_of) as session:
        assert session.board == server.url and session.ping() < 5


@pytest.fixture
def place(server: Server) -> str:
    """The lines of ~/.ssh/config that name the server."""
    server.trust()
    return f"  HostName 127.0.0.1\n  Port {server.port}\n  User {getpass.getuser()}\n"


def test_include_and_match(server: Server, place: str, runtime_of: Files) -> None:
    more = server.home / "more"
    more.write_text(f"Host board\n{place}")
    final = "Match final all\n  ServerAliveInterval 7\n"
    key = f"Match originalhost board\n  IdentityFile {server.home}/.ssh/id_ed25519\n"
    configured(server, f"Include {more}\n{key}{final}")
    reached(server, "board", runtime_of)


def test_names_of_known_hosts(server: Server, place: str, runtime_of: Files) -> None:
    known = server.home / ".ssh/known_hosts"
    other = server.home / "other hosts"
    for names, lines in (
        ("[127.0.0.*]:*", ""),
        ("*", ""),
        ("127.0.0.1", ""),  # the same key on the usual port
        ("kitchen", "  HostKeyAlias kitchen\n"),
    ):
        known.write_text(f"{names} {server.host_key}\n")
        configured(server, f"Host board\n{place}{lines}")
        reached(server, "board", runtime_of)
    known.unlink()
    other.write_text(f"[127.0.0.1]:{server.port} {server.host_key}\n")
    configured(server, f'Host board\n{place}  UserKnownHostsFile "{other}"\n')
    reached(server, "board", runtime_of)
    configured(server, f"Host board\n{place}  UserKnownHostsFile none\n"
                       f'  GlobalKnownHostsFile "{other}"\n')  # fmt: skip
    reached(server, "board", runtime_of)
    configured(server, f"Host board\n{place}  StrictHostKeyChecking accept-new\n")
    reached(server, "board", runtime_of)
    assert f"[127.0.0.1]:{server.port} ssh-ed25519" in known.read_text()


def test_an_agent_of_the_configuration(
    server: Server, place: str, runtime_of: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    own = dict(re.findall(r"(SSH_\w+)=([^;]+);", told))
    key = server.home / ".ssh/id_ed25519"
    try:
        add = ["ssh-add", "-q", str(key)]
        subprocess.run(add, env=os.environ | own, check=True, capture_output=True)
        key.unlink()
        agent = f"  IdentityAgent {own['SSH_AUTH_SOCK']}\n"
        configured(server, f"Host board\n{place}{agent}")
        reached(server, "board", runtime_of)
        # Only the key of this .pub file may be offered.
        only = f"{agent}  IdentitiesOnly yes\n  IdentityFile {key}\n"
        configured(server, f"Host board\n{place}{only}")
        reached(server, "board", runtime_of)
        Path(f"{key}.pub").unlink()
        with pytest.raises(errors.Unreachable, match="was not let in: there is no key here"):
            connect("ssh://board", runtime_of)
        configured(server, f"Host board\n{place}  IdentityAgent none\n")
        monkeypatch.setenv("SSH_AUTH_SOCK", own["SSH_AUTH_SOCK"])
        with pytest.raises(errors.Unreachable, match="was not let in"):
            connect("ssh://board", runtime_of)
    finally:
        subprocess.run(["ssh-agent", "-k"], env=os.environ | own, capture_output=True)


def test_what_paramiko_reads_where_there_is_no_ssh(
    server: Server, place: str, runtime_of: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(server, f"Host board\n{place}")
    url = SshUrl("board")
    told = resolve(url)
    monkeypatch.setattr("shutil.which", lambda name: None)
    read = resolve(url)
    assert read == replace(told, keys=read.keys)
    reached(server, "board", runtime_of)


def test_a_configuration_that_ssh_does_not_understand(server: Server) -> None:
    configured(server, "Host board\n  Nonsense yes\n")
    with pytest.raises(errors.Unreachable) as caught:
        resolve(SshUrl("board"))
    assert "ssh cannot read its configuration" in caught.value.what
    assert "Nonsense" in caught.value.what or "nonsense" in caught.value.what
    assert caught.value.attempt == ("mend ~/.ssh/config until this succeeds: ssh -G board")


@pytest.mark.parametrize(
    "text",
    ["ssh://-oProxyCommand=x", "ssh://[-oProxyCommand=x]", "ssh://-l@board", "ssh://a;b@board",
     "ssh://$(id)@board", "ssh://board`id`", "ssh://a|b", "ssh://[fe80::1;id]"],
)  # fmt: skip
def test_names_that_are_options_or_commands(text: str) -> None:
    with pytest.raises(errors.Unreachable, match="is not"):
        parse_url(text)


def test_a_hop_that_is_an_option(server: Server) -> None:
    if not shutil.which("ssh"):
        pytest.skip("no ssh here")
    configured(server, "Host board\n  ProxyJump -oProxyCommand=touch\n")
    with pytest.raises(errors.Unreachable):
        resolve(SshUrl("board"))


def test_a_pattern_in_small_letters(tmp_path: Path) -> None:
    (tmp_path / "known").write_text("Board*.LAB ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBRdbiU07EDUt"
                                    "3ABl7ZDqFYzyhbI7HkrR4qltHMpk4ol\n")  # fmt: skip
    keys = known_hosts([str(tmp_path / "known")]).keys
    assert keys.lookup("board7.lab") and not keys.lookup("board.home")
