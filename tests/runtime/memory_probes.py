"""Kernels that try to leave the memory they were given, and what each must come to.

`Attacked` holds a session with a board, on which a model computes from its weights after an
attacker, a kernel of the same model. It needs nothing but a session, so any board will do. Where
the board is a process of this machine, probes can be told addresses in it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgpack
import numpy as np
from elftools.elf.elffile import ELFFile

from mlc_deploy.board.runtime_files import runtime_file
from mlc_rpc import Session, errors
from mlc_rpc.tensor import RemoteTensor
from tests.runtime.board import IN_INPUT, IN_OUTPUT, IN_WEIGHTS, Array, hash_of, param

SOURCE = Path(__file__).with_suffix(".c")
COUNT = 4096  # weights, and elements of x and y
TASKS = 8
WEIGHTS = np.linspace(1, 3, COUNT, dtype=np.float32)
X = np.linspace(-7, 5, COUNT, dtype=np.float32)
BYSTANDER = np.arange(COUNT, dtype=np.float32)
NOTHING = (0, 0, 0, 0)  # a wish
GADGETS = {"x86_64": bytes.fromhex("0f05c3"), "aarch64": bytes.fromhex("010000d4c0035fd6")}


@dataclass(frozen=True)
class Probe:
    """`by_itself`: what a kernel that makes system calls by its own instructions comes to, a
    pattern of the error; "": the run ends well. `knowing`: the same where it makes them by the
    runtime's own instructions, which the sandbox lets through; None: no such variant. `own_view`:
    it may have changed what its own worker sees until that ends, and nothing else. `where`: what it
    must be told."""

    name: str
    number: int
    by_itself: str
    knowing: str | None = None
    own_view: bool = False
    where: str = ""


def _forbids(call: str) -> str:
    where = r"kernel 'attack' \(layer 'attack', call 0\)"
    return rf"SIGSYS in {where}: it called {call}, which the sandbox"


OUTSIDE = r"SIGSEGV in kernel '(attack|compute)'"
GARBLED = r"kernel 'attack' \(layer 'attack', call 0\) sent an answer that is not its worker's"
PROBES = (
    Probe("mprotect of weights", 1, _forbids("mprotect"), ""),
    Probe("mmap over weights", 2, _forbids("mmap"), "", own_view=True),
    Probe("mremap of weights", 3, _forbids("mremap"), _forbids("mremap")),
    Probe("munmap of weights", 4, _forbids("munmap"), OUTSIDE),
    Probe("madvise DONTNEED of weights", 5, _forbids("madvise"), ""),
    Probe("madvise REMOVE of weights", 6, _forbids("madvise"), ""),
    Probe("store to weights", 7, OUTSIDE),
    Probe("mprotect of code", 8, _forbids("mprotect"), "SIG.* in kernel 'compute'"),
    Probe("ftruncate of all", 9, _forbids("ftruncate"), _forbids("ftruncate")),
    Probe("write to all", 11, _forbids("write"), _forbids("write")),
    Probe("answers of zeros", 12, _forbids("sendto"), GARBLED),
    Probe("answers of ones", 13, _forbids("sendto"), GARBLED),
    Probe("store to what is shared with the supervisor", 14, "", where="shared"),
    Probe("store to a tensor that is not given", 14, OUTSIDE, where="tensor"),
    Probe("a thread that flips the answer", 15, _forbids("clone"), where="shared"),
    Probe("all memory", 16, _forbids("mmap"), ""),
    Probe("stack smash", 17, OUTSIDE),
    Probe("every signal blocked", 18, _forbids("rt_sigprocmask"), ""),
    Probe("reopening a descriptor", 19, _forbids("openat"), _forbids("openat")),
    Probe("process_vm_writev", 20, _forbids("process_vm_writev"), _forbids("process_vm_writev")),
    Probe("exit", 21, _forbids("exit_group"), "the worker ended by itself in kernel 'attack'"),
)
MODES = (
    Probe("rounding mode", 100, ""),
    Probe("flush to zero", 101, ""),
    Probe("direction of strings", 102, ""),
    Probe("x87 precision and stack", 103, ""),
    Probe("unmasked exceptions", 104, ""),
    Probe("alignment checks", 105, "", None),
)


@cache
def module_bytes(machine: str) -> bytes:
    """The object of both kernels, with a model that calls one after the other."""
    floats, size = [param("weights", "float32", [COUNT])], 4 * COUNT
    wish = param("wish", "int64", [4])
    said = param("said", "int64", [1], output=True)
    x, y = param("x", "float32", [COUNT]), param("y", "float32", [COUNT], output=True)
    kernels = [
        {"name": name, "params": params, "scalars": [], "tasks": TASKS, "workspace": 0}
        for name, params in (("attack", [*floats, wish, said]), ("compute", [*floats, x, y]))
    ]
    weights = [IN_WEIGHTS, 0, 0, size]
    model = {
        "inputs": [wish, x],
        "outputs": [said, y],
        "arena": 0,
        "weights": size,
        "weights_hash": hash_of(WEIGHTS.tobytes()),
        "calls": [
            [0, "attack", [weights, [IN_INPUT, 0, 0, 32], [IN_OUTPUT, 0, 0, 8]]],
            [1, "compute", [weights, [IN_INPUT, 1, 0, size], [IN_OUTPUT, 1, 0, size]]],
        ],
    }
    says = {"abi": 1, "target": "", "machine": machine, "features": [], "kernels": kernels}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "metadata").write_bytes(msgpack.packb(says | {"model": model}))
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl", "-O1"]
        command += ["-c", "-ffreestanding", "-fno-stack-protector", "-fno-sanitize=all", "-fno-pic"]
        command += ["-Wall", "-Wextra", "-Werror", "-o", "probes.o", str(SOURCE)]
        if machine == "x86_64":
            command += ["-mno-red-zone", "-mcmodel=small"]
        subprocess.run(command, cwd=folder, check=True)
        return (Path(folder) / "probes.o").read_bytes()


@cache
def gadget(machine: str) -> int:
    """Address in the runtime of an instruction that calls the system, and one that returns."""
    with runtime_file(machine).open("rb") as file:
        for segment in ELFFile(file).iter_segments("PT_LOAD"):
            at = segment.data().find(GADGETS[machine]) if segment["p_flags"] & 1 else -1
            if at >= 0:
                return int(segment["p_vaddr"]) + at
    raise AssertionError("the runtime has no such instructions")


class Attacked:
    """The session, what it has on the board, and what all of it must still be after a probe."""

    def __init__(self, session: Session, machine: str) -> None:
        self.session, self.machine = session, machine
        self.module = session.load(module_bytes(machine), WEIGHTS.tobytes())
        self.wish = session.tensor(np.zeros(4, np.int64))
        self.x = session.tensor(X)
        self.said = session.tensor(np.zeros(1, np.int64))
        self.y = session.empty((COUNT,))
        self.bystander = session.tensor(BYSTANDER)
        self.right = self.compute()
        assert np.isfinite(self.right).all() and np.abs(self.right).max() > 0

    def run(
        self,
        wish: Sequence[int],
        threads: int = 1,
        x: RemoteTensor | None = None,
        y: RemoteTensor | None = None,
    ) -> Array:
        """Both kernels; returns y, which was spoiled before."""
        self.wish.write(np.array(wish, np.uint64).view(np.int64))
        self.y.write(np.full(COUNT, np.nan, np.float32))
        given = (self.wish, x or self.x, self.said, y or self.y)
        args, options = [each.handle for each in given], {"threads": threads, "timeout_ms": 20_000}
        answer = self.session.call("run", self.module.handle, None, args, options, timeout=30)
        assert len(answer["nanoseconds"]) == 2
        return self.y.numpy()

    def compute(self, threads: int = 1) -> Array:
        return self.run(NOTHING, threads)

    def attack(
        self, probe: Probe, knowing: bool = False, where: tuple[int, int] = (0, 0), threads: int = 1
    ) -> Array | None:
        """What the run that holds the probe computed; None where it ended in the error it must."""
        expected = probe.knowing if knowing else probe.by_itself
        wish = (probe.number, gadget(self.machine) if knowing else 0, *where)
        out = self.x if probe.where == "tensor" else None
        try:
            result = self.run(wish, threads, y=out)
        except errors.Crashed as error:
            assert expected and re.search(expected, error.what), error.what
            return None
        assert not expected, f"{probe.name} came to no error; it was told {self.said.numpy()}"
        return result

    def check(self, probe: Probe, knowing: bool = False) -> None:
        """That nothing but the worker has noticed."""
        if probe.own_view and knowing:
            self.end_worker()
        for threads in (1, 2):
            np.testing.assert_array_equal(self.compute(threads), self.right, probe.name)
        np.testing.assert_array_equal(self.bystander.numpy(), BYSTANDER, probe.name)
        np.testing.assert_array_equal(self.x.numpy(), X, probe.name)
        assert self.session.get(hash_of(WEIGHTS.tobytes())) == WEIGHTS.tobytes(), probe.name

    def end_worker(self) -> None:
        """By a kernel, so that it works on any board."""
        self.attack(next(probe for probe in PROBES if probe.name == "stack smash"))

    # ---- Where the board is a process of this machine ----

    def worker(self) -> int:
        pid: int = self.session.link.transport._child.pid  # type: ignore[attr-defined]
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def mappings(self) -> dict[tuple[int, int], str]:
        """Address and size of each mapping that the worker shares and may write to -> name."""
        found: dict[tuple[int, int], str] = {}
        for line in Path(f"/proc/{self.worker()}/maps").read_text().splitlines():
            area, rights, *rest = line.split(maxsplit=5)
            if rights == "rw-s":
                begin, end = (int(each, 16) for each in area.split("-"))
                found[begin, end - begin] = rest[-1]
        return found

    def where(self, probe: Probe) -> tuple[int, int]:
        """The memory that the probe is told of."""
        match probe.where:
            case "":
                return 0, 0
            case "shared":
                (area,) = (a for a, name in self.mappings().items() if "/dev/zero" in name)
                return area
            case "tensor":  # where the bystander was, or another, and where nothing is now
                self.run(NOTHING, x=self.bystander)
                before = set(self.mappings())
                self.run(NOTHING, y=self.x)
                self.x.write(X)
                return next(a for a in before - set(self.mappings()) if a[1] == X.nbytes)
            case other:
                raise AssertionError(other)
