"""Whatever a kernel does, it costs a worker: what is said, how soon all goes on, what is left.

Every fault on every machine, through the whole client; the board is a child of this process.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlc_rpc import Session, connect, errors
from tests.rpc.listener import children, wait_until
from tests.runtime.board import BYTES, X, metadata_of, module_of

Runtime = Callable[[str], Path]
BOARDS = {"x86_64": "local://", "arm": "qemu://cortex-a7", "aarch64": "qemu://cortex-a72"}
RECOVERY_SECONDS = 30.0  # a fresh worker loads the module again; QEMU makes the most of it

# Per fault: the kernel, and what the error must say, as a pattern.
CRASHES = {
    "SIGSEGV": ("wild", "SIGSEGV in kernel 'wild': it reached outside its buffers or overflowed"),
    "SIGILL": ("illegal", "SIGILL in kernel 'illegal': it met an instruction that this CPU does"),
    # Where the board's system can forbid calls; else its signal would be the reason.
    "abort": (
        "abort",
        "SIG(SYS in kernel 'abort': it called getpid, which the sandbox forbids|ABRT in "
        "kernel 'abort': it met a trap)",
    ),
    "stack overflow": ("deep", "SIGSEGV in kernel 'deep': it reached outside its buffers or over"),
    "write past its buffer": ("overrun", "SIGSEGV in kernel 'overrun': it reached outside its"),
}


def supervisor(session: Session) -> int:
    pid: int = session.link.transport._child.pid  # type: ignore[attr-defined]
    return pid


def held(pid: int) -> tuple[int, int, int]:
    """Descriptors, memory mappings, and children of the supervisor."""
    mappings = len(Path(f"/proc/{pid}/maps").read_text().splitlines())
    return len(os.listdir(f"/proc/{pid}/fd")), mappings, len(children(pid))


def fault(session: Session, machine: str, name: str) -> None:
    """Makes it happen, and checks what is said."""
    scratch = session.tensor(BYTES)
    if name == "out of memory":
        says = metadata_of(machine, ["add"])
        says["kernels"][0]["workspace"] = 1 << 50
        with pytest.raises(errors.OutOfMemory, match="no memory for a workspace"):
            session.load(module_of("add", machine=machine, says=says))
        with pytest.raises(errors.OutOfMemory, match="does not fit") as full:
            session.empty((1 << 50,), "uint8")
        assert full.value.method == "tensor.new" and "free tensors" in str(full.value)
    elif name == "endless loop":
        module = session.load(module_of("spin", machine=machine))
        with pytest.raises(errors.Timeout) as late:
            module["spin"](scratch, timeout=0.2)
        assert str(late.value) == (
            f"kernel 'spin' was still running after 200 ms\n  on:  {session.board}, method run\n"
            "  try: a larger timeout, if it is slow rather than stuck"
        )
        module.close()
    else:
        kernel, what = CRASHES[name]
        module = session.load(module_of(kernel, machine=machine))
        with pytest.raises(errors.Crashed) as caught:
            module[kernel](scratch)
        assert re.match(what, caught.value.what)
        assert (caught.value.kernel, caught.value.board) == (kernel, session.board)
        assert "\n  try: " in str(caught.value)
        module.close()
    scratch.close()


@pytest.mark.parametrize("machine", BOARDS)
@pytest.mark.parametrize("name", [*CRASHES, "endless loop", "out of memory"])
def test_fault(machine: str, name: str, runtime_of: Runtime) -> None:
    descriptors_before, threads_before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with connect(BOARDS[machine], runtime_of, machine=machine) as session:
        module = session.load(module_of("add", machine=machine))
        kept = session.tensor(X)
        fault(session, machine, name)
        before = held(supervisor(session))
        fault(session, machine, name)
        begin = time.monotonic()
        total = session.tensor(0 * X)
        module["add"](kept, kept, total)
        assert time.monotonic() - begin < RECOVERY_SECONDS
        np.testing.assert_array_equal(total.numpy(), 2 * X)
        np.testing.assert_array_equal(kept.numpy(), X)
        total.close()
        module["add"](kept, kept, kept)
        descriptors, mappings, workers = held(supervisor(session))
        assert workers == 1
        # A fault leaves no more behind than the one before it, give or take the worker's socket.
        assert descriptors <= before[0] + 1 and mappings <= before[1] + 1
        board = supervisor(session)
        left = [board, *children(board)]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), "a process is left")
    wait_until(
        lambda: (  # fewer, when what came before this test ended meanwhile
            len(os.listdir("/proc/self/fd")) <= descriptors_before
            and threading.active_count() <= threads_before
        ),
        "the client keeps descriptors or threads",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can stop being root")
@pytest.mark.parametrize("as_root", [False, True])
def test_kernels_run_as_nobody(as_root: bool, runtime_of: Runtime, tmp_path: Path) -> None:
    program = tmp_path / "start"
    options = "--as-root" if as_root else ""
    program.write_text(f"#!/bin/sh\nexec {runtime_of('x86_64')} {options}\n")
    program.chmod(0o755)
    with connect("local://", lambda machine: program) as session:
        module = session.load(module_of("add"))
        a = session.tensor(X)
        module["add"](a, a, a)
        (worker,) = children(supervisor(session))
        status = Path(f"/proc/{worker}/status").read_text()
        ids = re.findall(r"^[UG]id:\s+(.*)$", status, re.MULTILINE)
        assert ids == ["\t".join(["0" if as_root else "65534"] * 4)] * 2
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
        if not as_root:
            assert re.search(r"^Groups:\s*$", status, re.MULTILINE)
            assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
        limits = Path(f"/proc/{worker}/limits").read_text()
        assert re.search(r"^Max address space\s+\d+ ", limits, re.MULTILINE)
        os.kill(supervisor(session), 9)
        wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker outlives it")


def test_fifty_sessions_at_once(runtime_of: Runtime) -> None:
    """Each loads, runs and times correctly, with tensors of its own."""
    code = module_of("add")
    ready = threading.Barrier(50, timeout=300)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with connect("local://", runtime_of) as session:
                ready.wait()  # all fifty are there
                module = session.load(code)
                a, total = session.tensor(X + number), session.empty((64,))
                module["add"](a, a, total)
                np.testing.assert_array_equal(total.numpy(), 2 * (X + number))
                timing = module["add"].time_evaluator(number=3, repeat=4)(a, a, total)
                assert len(timing.samples) == 4 and 0 < timing.median < 1
                np.testing.assert_array_equal(total.numpy(), 2 * (X + number))
                ready.wait()
        except BaseException as error:
            failures.append(error)
            ready.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
