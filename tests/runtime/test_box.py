"""The box that kernels run in: what they try, what it costs, what is said of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlc_deploy.runtime_files import runtime_file
from mlc_rpc import connect, errors, wire
from mlc_rpc.local import local_machine
from tests.rpc.listener import children, descendants, wait_until
from tests.runtime.board import BYTES
from tests.runtime.driver import RUNTIME
from tests.runtime.escape_probes import AFTER, TIMEOUT, Bench, kernel_of, of_machine

QEMU = "qemu://cortex-a72"
SLOW = 5.0  # seconds that an emulator may take besides
needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-aarch64"), reason="no QEMU here: apt install qemu-user"
)
HERE = of_machine(local_machine())


@contextlib.contextmanager
def folder_of_a_victim() -> Iterator[Path]:
    """With one file in it; everybody may write both."""
    folder = Path(tempfile.mkdtemp(prefix="mlc-escape-", dir="/tmp"))  # which all may enter
    folder.chmod(0o777)
    (folder / "victim").write_text("untouched")
    (folder / "victim").chmod(0o666)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """One session for all probes, since each leaves it as it was."""
    with folder_of_a_victim() as folder, connect("local://", runtime_file) as session:
        pid = session.link.transport._child.pid  # type: ignore[attr-defined]

        victim = folder / "victim"

        def state() -> str:
            seen = victim.stat()
            assert len(descendants(pid)) == len(children(pid)) == 1
            return f"{os.listdir(folder)} {victim.read_text()} {seen.st_mode} {seen.st_mtime}"

        yield Bench(session, local_machine(), str(folder), state)
        left = [pid, *descendants(pid)]
    assert not any(Path(f"/proc/{each}").exists() for each in left[1:])


@pytest.mark.parametrize("name", HERE)
def test_a_kernel_does_not_get_out(name: str, bench: Bench) -> None:
    if "syscalls" not in (bench.session.device.box or ()):
        pytest.skip("this system cannot forbid system calls")
    bench.reaches_nothing(HERE[name])


REACHES = {
    "openat that creates": "['made', 'victim'] untouched",
    "truncate": "['victim'] ",
    "unlinkat": "[]",
    "renameat2": "['made']",
}


@needs_qemu
@pytest.mark.parametrize("name", REACHES)
def test_the_same_kernel_gets_out_where_there_is_no_box(name: str) -> None:
    """An emulator forbids nothing: so what holds the others is the box."""
    with folder_of_a_victim() as folder, connect(QEMU, runtime_file, machine="aarch64") as session:
        assert session.device.box == ()
        tried = of_machine("aarch64")[name]
        code = kernel_of(tried, "aarch64", str(folder))
        session.load(code)["probe"](session.tensor(BYTES))
        victim = folder / "victim"
        text = victim.read_text() if victim.exists() else ""
        assert f"{sorted(os.listdir(folder))} {text}".startswith(REACHES[name])


@needs_qemu
@pytest.mark.parametrize("name", ["clone", "double fork", "outlive the supervisor"])
def test_what_a_kernel_makes_ends_with_it_without_a_box(name: str) -> None:
    """Nobody waits for the end of a socket that a child of the kernel's still holds."""
    with connect(QEMU, runtime_file, machine="aarch64") as session:
        pid = session.link.transport._child.pid  # type: ignore[attr-defined]
        bench = Bench(session, "aarch64", "/nowhere", lambda: "")
        for _ in range(2):
            with contextlib.suppress(errors.Crashed, errors.Timeout):
                module = session.load(kernel_of(of_machine("aarch64")[name], "aarch64", "/nowhere"))
                began = time.monotonic()
                module["probe"](bench.scratch, timeout=TIMEOUT)
            assert time.monotonic() - began < TIMEOUT + AFTER + SLOW
            bench.goes_on()
            wait_until(lambda: len(descendants(pid)) <= 1, "a process is left")
        left = descendants(pid)
    wait_until(lambda: not any(Path(f"/proc/{p}").exists() for p in left), "a process outlives it")


def test_there_are_forty_and_more() -> None:
    assert len(HERE) >= 40 and len(of_machine("aarch64")) >= 40


def test_names_of_its_parts_are_those_of_the_wire() -> None:
    source = (RUNTIME / "src" / "box.c").read_text()
    table = re.search(r"box_names\[BOX_PARTS\] = \{(.*?)\};", source, re.DOTALL)
    assert table and tuple(re.findall(r'"(\w+)"', table[1])) == wire.BOX
