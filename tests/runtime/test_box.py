"""The box that kernels run in: what they try, what it costs, what is said of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mlc_deploy.artifact.format import write_file
from mlc_deploy.board.runtime_files import runtime_file
from mlc_rpc import Session, connect, errors, wire
from mlc_rpc.local import local_machine
from tests.rpc.listener import Listener, children, descendants, wait_until
from tests.runtime.board import BYTES, IN_ARENA, X, model_of, module_of
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
        assert not set(session.device.box or ()) - {"memory"}
        tried = of_machine("aarch64")[name]
        code = kernel_of(tried, "aarch64", str(folder))
        session.load(code)["probe"](session.tensor(BYTES))
        victim = folder / "victim"
        text = victim.read_text() if victim.exists() else ""
        assert f"{sorted(os.listdir(folder))} {text}".startswith(REACHES[name])


def left_of(program: Path) -> list[int]:
    """Processes that run it, whoever their parent is."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "exe") == str(program):
                found.append(int(entry.name))
    return found


def makes_processes(session: Session, machine: str, name: str, left: Callable[[], int]) -> None:
    """Twice, and waits until there are but the supervisor and a worker."""
    bench = Bench(session, machine, "/nowhere", lambda: "")
    for _ in range(2):
        module = session.load(kernel_of(of_machine(machine)[name], machine, "/nowhere"))
        began = time.monotonic()
        with contextlib.suppress(errors.Crashed, errors.Timeout):
            module["probe"](bench.scratch, timeout=TIMEOUT)
        assert time.monotonic() - began < TIMEOUT + AFTER + SLOW
        bench.goes_on()
        wait_until(lambda: left() <= 2, f"{left()} processes are left")


@needs_qemu
def test_a_child_that_holds_the_socket_keeps_nobody_waiting() -> None:
    """An emulator forbids no fork: the worker's copy ends in place of answering, too."""
    with connect(QEMU, runtime_file, machine="aarch64") as session:
        pid = session.link.transport._child.pid  # type: ignore[attr-defined]
        makes_processes(session, "aarch64", "clone", lambda: 1 + len(descendants(pid)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can do without a namespace at will")
@pytest.mark.parametrize("name", ["clone", "double fork"])
@pytest.mark.parametrize("apart", [True, False])
def test_what_a_kernel_makes_ends_with_it(
    name: str, apart: bool, sanitized: Path, tmp_path: Path
) -> None:
    """By the end of their namespace, or by their adoption; the program forbids them no call."""
    start = tmp_path / "start"
    without = "" if apart else "setpriv --bounding-set=-sys_admin"
    start.write_text(f"#!/bin/sh\nexec {without} {sanitized}\n")
    start.chmod(0o755)
    with connect("local://", lambda machine: start) as session:
        held = session.device.box or ()
        assert ("processes" in held) == apart and "syscalls" not in held
        makes_processes(session, local_machine(), name, lambda: len(left_of(sanitized)))
    wait_until(lambda: left_of(sanitized) == [], "a process outlives the session")


# What the command for boards without a laptop says of each, after where it was.
RUN = {
    "openat that creates": "SIGSYS in {}: it called openat, which the sandbox forbids",
    "kill everybody": "SIGSYS in {}: it called kill, which the sandbox forbids",
    "write on every descriptor": "SIGSYS in {}: it called write, which the sandbox forbids",
    "overflow its stack": "SIGSEGV in {}: it reached outside its buffers or overflowed its stack",
    "end by itself": "the worker ended by itself in {}, with status 0",
}


@pytest.mark.parametrize("name", RUN)
def test_the_command_runs_models_in_the_box(name: str, tmp_path: Path) -> None:
    """Nothing gets out, and nothing counts as done that is not."""
    machine, weights = local_machine(), bytes(256)
    described = model_of(weights)
    described["calls"][2] = [2, "features.3", [[IN_ARENA, 0, 0, 64]]]
    program = {
        "level": "base", "target": machine, "machine": machine, "features": [], "object": 0,
        "weights": 1, "indices": {},
    }  # fmt: skip
    with folder_of_a_victim() as folder:
        code = kernel_of(HERE[name], machine, str(folder), described)
        write_file(tmp_path / "m.mlc", {"programs": [program]}, [code, weights])
        np.save(tmp_path / "x.npy", np.ones((1, 64), np.float32))
        ended = subprocess.run(
            [runtime_file(machine), "run", "m.mlc", "--input", "x.npy", "--output", "out"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert os.listdir(folder) == ["victim"] and (folder / "victim").read_text() == "untouched"
    where = "kernel 'probe' (layer 'features.3', call 2)"
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"error: {RUN[name].format(where)}\n"
    assert not (tmp_path / "out").exists()


def test_nothing_is_inherited() -> None:
    """Neither the session's stream, nor the port, nor what the program was started with."""
    leaked = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        with (
            Listener(runtime_file(local_machine()), close_fds=False) as board,
            connect(board.url, runtime_file, key=board.key) as session,
        ):
            tensor = session.tensor(BYTES)
            session.load(module_of("count", machine=local_machine()))
            worker = descendants(board.process.pid)[-1]
            held = {
                int(fd): os.readlink(f"/proc/{worker}/fd/{fd}")
                for fd in os.listdir(f"/proc/{worker}/fd")
            }
            assert tensor.numpy().sum() == 0
    finally:
        os.close(leaked)
    assert [held.pop(fd) for fd in (0, 1, 2)] == ["/dev/null"] * 3
    assert re.match(r"socket:", held.pop(3))
    for path in held.values():  # what timings tell of
        own = rf"/proc/(loadavg$|{worker}/statm$)"
        assert re.match(rf"{own}|/sys/(class/thermal|devices)/|anon_inode:.perf", path), path


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program under AddressSanitizer and UBSan."""
    if not shutil.which("gcc") or not shutil.which("make"):
        pytest.skip("no C compiler here: apt install gcc make")
    folder = tmp_path_factory.mktemp("sanitized")
    command = ["make", "-s", "-C", str(RUNTIME), f"BUILD={folder}", "sanitized"]
    subprocess.run(command, check=True)
    return folder / "mlc-runtime-sanitized"


def test_a_report_of_a_sanitizer_comes_out(sanitized: Path) -> None:
    """Of a worker, too; and there is none where all went well."""
    machine = local_machine()
    with connect("local://", lambda machine: sanitized) as session:
        module = session.load(module_of("add", "spin", "wild", machine=machine))
        x, scratch = session.tensor(X), session.tensor(BYTES)
        module["add"](x, x, x, threads=3)
        timing = module["add"].time_evaluator(number=2, repeat=3)(x, x, x)
        assert len(timing.samples) == 3
        with pytest.raises(errors.Timeout):
            module["spin"](scratch, timeout=0.3)
        assert "Sanitizer" not in session.link.transport.last_words()
        with pytest.raises(errors.Crashed) as caught:
            module["wild"](scratch)
        assert caught.value.what == "the worker ended by itself in kernel 'wild', with status 1"
        said = session.link.transport.last_words()
        assert "AddressSanitizer: SEGV on unknown address 0x000000000010" in said
        module["add"](x, x, x)


def test_there_are_forty_and_more() -> None:
    assert len(HERE) >= 40 and len(of_machine("aarch64")) >= 40


def test_names_of_its_parts_are_those_of_the_wire() -> None:
    source = (RUNTIME / "src" / "box.c").read_text()
    table = re.search(r"box_names\[BOX_PARTS\] = \{(.*?)\};", source, re.DOTALL)
    assert table and tuple(re.findall(r'"(\w+)"', table[1])) == wire.BOX
