"""No command listens on an address of others, unless it was asked to and has a key.

Each command runs, and the sockets of all its processes are read from the system. A command that is
in no list here fails the test, and so does a file that opens a port.
"""

from __future__ import annotations

import ast
import os
import subprocess
import time
from pathlib import Path

import click
import pytest

import mlc_deploy
from mlc_deploy.cli.main import cli
from mlc_rpc.local import local_machine
from tests.cli.command import MODELS
from tests.farm.farms import MLC_DEPLOY, free_port
from tests.listening import Address, is_local, listening

ROOT = Path(__file__).parents[2]
DIGITS = str(MODELS / "digits_cnn.onnx")
SECONDS = 300.0  # for a command that ends
LISTENING_SECONDS = 60.0  # for one that listens to begin with it
# Commands that end: none of them listens. Those of a model use a board of this machine.
QUIET: dict[str, tuple[str, ...]] = {
    "run": (DIGITS, "--board", "local://"),
    "inspect": ("inspect", DIGITS),
    "tune": ("tune", DIGITS, "--board", "local://", "--trials", "1", "--only", "max_pool",
             "--db", "t.jsonl"),
    "quantize": ("quantize", DIGITS),
    "generate": ("generate", DIGITS),
    "transcribe": ("transcribe", DIGITS),
    "compare-boards": ("compare-boards", DIGITS),
    "compare": ("compare", "a.json", "b.json"),
    "report": ("report", "a.json"),
    "test": ("test", DIGITS, "--board", "local://"),
    "help": ("help", "farm"),
    "board enroll": ("board", "enroll", "x", "local://"),
    "board list": ("board", "list"),
    "board remove": ("board", "remove", "x"),
    "board info": ("board", "info", "local://"),
    "board doctor": ("board", "doctor", "local://"),
    "board calibrate": ("board", "calibrate", "x"),
    "board clean": ("board", "clean", "local://"),
    "farm keys": ("farm", "keys", "farm-keys"),
    "farm list": ("farm", "list", "tcp://127.0.0.1:1"),
}  # fmt: skip
ALWAYS = ("run", "board info")  # in every run of the tests; the others take minutes
# Commands that listen until they are stopped, and on how many ports. `{port}` is a scheduler's.
LISTENING: dict[str, tuple[tuple[str, ...], int]] = {
    "farm scheduler": (("farm", "scheduler", "tcp://127.0.0.1:{port}"), 1),
    "farm join": (("farm", "join", "tcp://127.0.0.1:{port}", "--board", "local://"), 2),
}
# The files of the product that open a port, or may; each is here with its reason.
OPENING = {
    "host/mlc_deploy/farm/closed.py": "scheduler and members: loopback, or certificates; no HTTP",
    "device_runtime/src/listen.c": "mlc-runtime --listen: loopback by default, a key always",
}


def commands(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """All commands that do something, by their names as they are typed."""
    context = click.Context(group)
    found: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found |= commands(command, f"{before}{name} ")
        elif command is not None:
            found[before + name] = command
    return found


def watched(
    arguments: tuple[str, ...], folder: Path, until: int | None = None
) -> set[tuple[Address, int]]:
    """Where the processes of a command listen while it runs; at most until they listen on so many
    ports."""
    env = {**os.environ, "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    path = [str(ROOT / part) for part in (".", "host", "rpc", "targets", "device_runtime")]
    env["PYTHONPATH"] = os.pathsep.join(path)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*MLC_DEPLOY, *arguments],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    found: set[tuple[Address, int]] = set()
    end = time.monotonic() + (SECONDS if until is None else LISTENING_SECONDS)
    try:
        while process.poll() is None and (until is None or len(found) < until):
            found |= listening(process.pid)
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        if until is not None:
            time.sleep(2.0)  # a further port would come by then
            found |= listening(process.pid)
    finally:
        process.kill()
        process.wait()
    return found


def test_every_command_is_in_a_list() -> None:
    assert commands(cli).keys() == QUIET.keys() | LISTENING.keys()


@pytest.mark.parametrize(
    "name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.sockets) for n in QUIET]
)
def test_a_command_that_ends_listens_nowhere(name: str, tmp_path: Path) -> None:
    assert watched(QUIET[name], tmp_path) == set()


@pytest.mark.farm
@pytest.mark.parametrize("name", LISTENING)
def test_a_command_that_listens_does_so_on_loopback(name: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    port = free_port()
    arguments, count = LISTENING[name]
    scheduler = None
    try:
        if name != "farm scheduler":
            scheduler = subprocess.Popen(
                [*MLC_DEPLOY, "farm", "scheduler", f"tcp://127.0.0.1:{port}"],
                env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
            )
        found = watched(tuple(a.format(port=port) for a in arguments), tmp_path, count)
    finally:
        if scheduler is not None:
            scheduler.kill()
            scheduler.wait()
    assert len(found) == count, (tmp_path / "log").read_text()
    assert all(is_local(address) for address, _ in found), found


def runtime(*arguments: str, key: bytes | None) -> tuple[set[tuple[Address, int]], str]:
    """Where mlc-runtime listens, and what it says."""
    program = Path(mlc_deploy.__file__).parent / "_runtime" / f"mlc-runtime-{local_machine()}"
    process = subprocess.Popen(
        [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin and process.stderr
    try:
        process.stdin.write(key or b"")
        process.stdin.close()
        said = process.stderr.readline().decode()
        return listening(process.pid), said
    finally:
        process.kill()
        process.wait()


def test_the_runtime_listens_on_loopback_and_with_a_key() -> None:
    found, said = runtime("--listen", "0", "--key-stdin", key=bytes(range(32)))
    assert len(found) == 1 and all(is_local(address) for address, _ in found), said
    for arguments, key in (
        (("--listen", "0"), None),
        (("--listen", "0.0.0.0:0"), None),
        (("--listen", "0.0.0.0:0", "--key-stdin"), b"short"),
        (("--listen", "0.0.0.0:0", "--key-stdin"), b""),
    ):
        found, said = runtime(*arguments, key=key)
        assert found == set() and said, arguments


# The functions and classes by which Python programs open ports: of sockets, servers and Dask.
OPENS = {
    "listen", "start_server", "create_server", "start_unix_server", "serve_forever", "HTTPServer",
    "ThreadingHTTPServer", "TCPServer", "UDPServer", "WSGIServer", "Nanny", "LocalCluster",
    "add_insecure_port", "add_secure_port",
}  # fmt: skip
OF_DASK = {"Scheduler", "Worker"}  # classes to begin with `distributed.`


def opens(path: Path) -> bool:
    """Whether a file of Python names one of them."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(value=ast.Name("distributed"), attr=name) if name in OF_DASK:
                return True
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in OPENS:
                return True
    return False


def test_no_other_file_opens_a_port() -> None:
    files = [path for part in ("host", "rpc", "targets") for path in (ROOT / part).rglob("*.py")]
    opening = {path for path in files if opens(path)}
    sources = (ROOT / "device_runtime" / "src").glob("*.c")
    opening |= {path for path in sources if " listen(" in path.read_text()}
    assert {str(path.relative_to(ROOT)) for path in opening} == OPENING.keys()
