"""Board URLs, child processes as transports, and what is said when there is no board."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_rpc import connect, errors, local, qemu
from mlc_rpc.process import ProcessTransport
from mlc_rpc.session import Session
from mlc_rpc.transport import LocalUrl, QemuUrl, SshUrl, TcpUrl, parse_url

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-arm") or not shutil.which("qemu-aarch64"),
    reason="no QEMU here: apt install qemu-user",
)


def no_runtime(machine: str) -> bytes:
    raise AssertionError(f"the runtime for {machine} was asked for")


def script(text: str) -> Callable[[str], bytes]:
    return lambda machine: f"#!/bin/sh\n{text}\n".encode()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("local://", LocalUrl()),
        ("qemu://", QemuUrl("max")),
        ("qemu://cortex-a7", QemuUrl("cortex-a7")),
        ("qemu://max,sve=off,sme=off", QemuUrl("max", "sve=off,sme=off")),
        ("ssh://board", SshUrl("board")),
        ("ssh://pi@board.local:2222/", SshUrl("board.local", "pi", 2222)),
        ("ssh://pi@[fe80::1%eth0]:22", SshUrl("fe80::1%eth0", "pi", 22)),
        ("tcp://board:9190", TcpUrl("board", 9190)),
        ("tcp://[::1]:9190", TcpUrl("::1", 9190)),
    ],
)
def test_urls(text: str, url: object) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "board",
            "'board' is not the URL of a board\n  on:  board\n"
            "  try: one of local://, qemu://[CPU[,flags]], ssh://[user@]host[:port], "
            "tcp://host:port, labgrid://place",
        ),
        (
            "telnet://board",
            "'telnet://board' is not the URL of a board\n  on:  telnet://board\n"
            "  try: one of local://, qemu://[CPU[,flags]], ssh://[user@]host[:port], "
            "tcp://host:port, labgrid://place",
        ),
        (
            "local://x",
            "local:// takes nothing after it\n  on:  local://x\n  try: local://",
        ),
        (
            "qemu://a b",
            "'a b' is not CPU[,flag=value...]\n  on:  qemu://a b\n  try: qemu://cortex-a53",
        ),
        (
            "qemu://cortex-m4",
            "cortex-m4 is a microcontroller, which runs no Linux\n  on:  qemu://cortex-m4\n"
            "  try: qemu://cortex-a7, or --target c",
        ),
        (
            "qemu://arm1176",
            "arm1176 is older than ARMv7, which the runtime needs\n  on:  qemu://arm1176\n"
            "  try: qemu://cortex-a7, or --target c",
        ),
        (
            "ssh://-oProxyCommand=x",
            "'-oProxyCommand=x' is not [user@]host[:port]\n  on:  ssh://-oProxyCommand=x\n"
            "  try: ssh://pi@raspberrypi:22",
        ),
        (
            "tcp://board",
            "'board' is not host:port\n  on:  tcp://board\n  try: tcp://raspberrypi:9190",
        ),
        (
            "tcp://pi@board:9190",
            "'pi@board:9190' is not host:port\n  on:  tcp://pi@board:9190\n"
            "  try: tcp://raspberrypi:9190",
        ),
        (
            "ssh://board:99999",
            "port 99999 is not between 1 and 65535\n  on:  ssh://board:99999\n"
            "  try: ssh://pi@raspberrypi:22",
        ),
    ],
)
def test_bad_urls(text: str, message: str) -> None:
    with pytest.raises(errors.Unreachable) as caught:
        connect(text, no_runtime)
    assert str(caught.value) == message


def test_local_elsewhere_than_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(errors.Unreachable) as caught:
        connect("local://", no_runtime)
    assert str(caught.value) == (
        "local:// runs on Linux only, and this is Darwin\n  on:  local://\n"
        "  try: a board reached by ssh://[user@]host[:port]"
    )


@pytest.mark.parametrize(
    ("kernel", "bits", "machine"),
    [("x86_64", 64, "x86_64"), ("aarch64", 64, "aarch64"), ("aarch64", 32, "arm"),
     ("armv7l", 32, "arm")],
)  # fmt: skip
def test_the_user_space_decides(
    kernel: str, bits: int, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: kernel)
    monkeypatch.setattr(sys, "maxsize", (1 << (bits - 1)) - 1)
    assert local.local_machine() == machine


def test_a_program_that_ends_at_once() -> None:
    with pytest.raises(errors.Unreachable) as caught:
        connect("local://", script("echo hello; echo 'bad luck' >&2; exit 3"))
    assert str(caught.value) == (
        "the board's program did not start: exit status 3; it said: bad luck; "
        "it printed: hello\n  on:  local://"
    )


def test_a_program_that_is_no_program() -> None:
    with pytest.raises(errors.Unreachable) as caught:
        connect("local://", lambda machine: b"\x7fELF nonsense")
    assert caught.value.what.startswith("cannot start ")
    assert caught.value.what.endswith("mlc-runtime-x86_64: Exec format error")


def test_a_program_that_ignores_the_end_of_input_is_killed(tmp_path: Path) -> None:
    stubborn = script(f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 600")
    for seconds in (2, 30):  # the second, where a busy machine has not started it yet
        with pytest.raises(errors.Unreachable):
            connect("local://", stubborn, timeout=seconds)
        if (tmp_path / "pid").exists():
            break
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_qemu_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(errors.Unreachable) as caught:
        connect("qemu://cortex-a7", no_runtime, machine="arm")
    assert str(caught.value) == (
        "qemu-arm is not installed\n  on:  qemu://cortex-a7\n  try: apt install qemu-user"
    )
    with pytest.raises(errors.Unreachable) as caught:
        connect("qemu://cortex-a53", no_runtime)
    assert caught.value.what == "qemu-aarch64 is not installed"


def test_qemu_emulates_arm_only() -> None:
    with pytest.raises(errors.Unreachable) as caught:
        connect("qemu://max", no_runtime, machine="x86_64")
    assert str(caught.value) == (
        "qemu:// emulates aarch64 and arm, not x86_64\n  on:  qemu://max\n  try: local://"
    )


@needs_qemu
def test_an_unknown_cpu_lists_the_nearest() -> None:
    with pytest.raises(errors.Unreachable) as caught:
        connect("qemu://cortex-a54", no_runtime)
    assert caught.value.what == "QEMU has no CPU 'cortex-a54'"
    names = caught.value.attempt.removeprefix("one of ").split(", ")
    assert {"cortex-a53", "cortex-a57"} <= set(names[:4])
    with pytest.raises(errors.Unreachable) as caught:
        connect("qemu://cortex-a54", no_runtime, machine="arm")
    assert caught.value.what == "qemu-arm has no CPU 'cortex-a54'"
    assert caught.value.attempt.startswith("one of cortex-a")


@needs_qemu
def test_cpus_that_are_no_boards_are_not_proposed() -> None:
    for cpu in ("cortex-z9", "xcortex-m3", "xarm926"):
        with pytest.raises(errors.Unreachable) as caught:
            connect(f"qemu://{cpu}", no_runtime)
        for name in caught.value.attempt.removeprefix("one of ").split(", "):
            assert parse_url(f"qemu://{name}")


@needs_qemu
def test_the_cpu_finds_its_machine() -> None:
    asked: list[str] = []

    def runtime(machine: str) -> bytes:
        asked.append(machine)
        raise LookupError

    for url in ("qemu://cortex-a7", "qemu://cortex-a72", "qemu://max"):
        with pytest.raises(LookupError):
            connect(url, runtime)
    assert asked == ["arm", "aarch64", "aarch64"]


@needs_qemu
def test_unknown_flags_are_qemus_to_refuse(runtime_of: Callable[[str], Path]) -> None:
    with pytest.raises(errors.Unreachable) as caught:
        connect("qemu://max,colour=red", runtime_of)
    assert "colour" in str(caught.value)


@needs_qemu
def test_a_qemu_without_plugins_says_so_and_goes_on(
    runtime_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the place of those that scripts/build-qemu makes, which come before the system's own.
    real, built = shutil.which("qemu-arm"), tmp_path / "mlc-deploy" / "qemu" / "qemu-arm"
    built.parent.mkdir(parents=True)
    built.write_text(
        f'#!/bin/sh\n[ "$1" = -plugin ] && echo "qemu: unknown option \'plugin\'" && exit 1\n'
        f'exec {real} "$@"\n'
    )
    built.chmod(stat.S_IRWXU)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    some = tmp_path / "plugin.so"
    some.touch()
    with connect("qemu://cortex-a7", runtime_of, plugin=some) as session:
        assert session.device.machine == "arm"
        assert session.emulated and not session.counting
        assert session.warnings == (
            "executed instructions are not counted: "
            "this QEMU takes no such plugin (qemu: unknown option 'plugin'); "
            "try: scripts/build-qemu",
        )


def test_a_plugin_that_is_not_built(tmp_path: Path) -> None:
    reason = qemu.refusal("qemu-arm", tmp_path / "libmlc-count.so", "program")
    assert reason == "the counting plugin libmlc-count.so is not built"


def test_a_killed_runtime_is_lost(runtime_of: Callable[[str], Path]) -> None:
    session = connect("local://", runtime_of)
    transport = session.link.transport
    assert isinstance(transport, ProcessTransport)
    transport._child.kill()
    with pytest.raises(errors.Lost) as caught:
        for _ in range(100):
            session.ping()
            time.sleep(0.01)
    assert caught.value.what == "the board's program ended: killed by SIGKILL"
    session.close()


def test_a_stopped_runtime_times_out(runtime_of: Callable[[str], Path]) -> None:
    session = connect("local://", runtime_of)
    transport = session.link.transport
    assert isinstance(transport, ProcessTransport)
    transport._child.send_signal(19)
    try:
        with pytest.raises(errors.Timeout):
            session.ping(timeout=0.2)
        with pytest.raises(errors.Timeout):
            session.link.call("tensor.write", 1, 0, timeout=0.2, tail=bytes(8 << 20))
    finally:
        session.close()
    assert transport._child.returncode is not None


def test_nothing_is_left_after_a_session(runtime_of: Callable[[str], Path]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with connect("local://", lambda machine: runtime_of(machine).read_bytes()) as session:
            transport = session.link.transport
            session.ping()
        assert isinstance(transport, ProcessTransport)
        assert not Path(transport._folder.name).exists()
        alive = subprocess.run(["ps", "-o", "pid=", "-g", str(transport._child.pid)], check=False)
        assert alive.returncode == 1
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_session_of_a_closed_transport() -> None:
    transport = local.open_local(script("cat"))
    transport.close()
    with pytest.raises(errors.Unreachable):
        Session(transport, timeout=1)


def test_the_package_imports_without_linux_and_without_paramiko() -> None:
    program = (
        "import sys\n"
        "sys.modules.update(fcntl=None, paramiko=None, mlc_deploy=None)\n"
        "import mlc_rpc\n"
        "assert not {'mlc_rpc.process', 'mlc_rpc.ssh'} & set(sys.modules)\n"
    )
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": path})
