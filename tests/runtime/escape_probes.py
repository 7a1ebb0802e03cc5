"""Kernels that try to reach out of their worker, each by a system call or two, and what must come
of it: one error with the reason, and nothing else, anywhere.

A probe's kernel is LLVM IR whose calls go straight to the system, by an instruction of the
runtime's: one of a kernel's own may call nothing (memory_probes.py). It is given one tensor, 8
int64: the supervisor's process id. `FOLDER` is one that everybody may write; in it lies `victim`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgpack
import numpy as np
import pytest

from mlc_rpc import RpcError, Session, errors
from tests.runtime.board import (
    BODIES,
    Map,
    X,
    assembled,
    function,
    metadata_of,
    module_of,
    replace,
)
from tests.runtime.memory_probes import gadget

TIMEOUT = 0.6  # seconds that a kernel is given that does not end
PLENTY = 10.0  # and one that ends at once
AFTER = 1.0  # seconds after it has ended, in which the session must have its answer

# Linux's numbers on x86_64 and aarch64; None where there is no such call.
NUMBERS: dict[str, tuple[int, int | None]] = {
    "accept4": (288, 242), "alarm": (37, None), "bind": (49, 200), "bpf": (321, 280),
    "capset": (126, 91), "chmod": (90, None), "chroot": (161, 51), "clone": (56, 220),
    "clone3": (435, 435), "close": (3, 57), "close_range": (436, 436), "connect": (42, 203),
    "creat": (85, None), "dup3": (292, 24), "execve": (59, 221), "execveat": (322, 281),
    "exit": (60, 93), "exit_group": (231, 94), "fchmodat": (268, 53), "fcntl": (72, 25),
    "fork": (57, None), "futex": (202, 98), "getppid": (110, 173), "io_uring_setup": (425, 425),
    "ioctl": (16, 29), "kill": (62, 129), "linkat": (265, 37), "memfd_create": (319, 279),
    "mkdirat": (258, 34), "mknodat": (259, 33), "mount": (165, 40), "nanosleep": (35, 101),
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434), "pipe2": (293, 59), "prctl": (157, 167), "prlimit64": (302, 261),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "pwrite64": (18, 68), "recvmsg": (47, 212), "renameat2": (316, 276),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigqueueinfo": (129, 138),
    "rt_sigreturn": (15, 139), "sched_setaffinity": (203, 122), "sendmsg": (46, 211),
    "sendto": (44, 206), "setitimer": (38, 103), "setns": (308, 268), "setpgid": (109, 154),
    "setpriority": (141, 140), "setresuid": (117, 147), "setsid": (112, 157),
    "setuid": (105, 146), "shmget": (29, 194), "shutdown": (48, 210), "sigaltstack": (131, 132),
    "socket": (41, 198), "socketpair": (53, 199), "symlinkat": (266, 36), "tgkill": (234, 131),
    "timer_create": (222, 107), "tkill": (200, 130), "truncate": (76, 45), "umount2": (166, 39),
    "unlink": (87, None), "unlinkat": (263, 35), "unshare": (272, 97), "userfaultfd": (323, 282),
    "utimensat": (280, 88), "vfork": (58, None), "write": (1, 64), "writev": (20, 66),
}  # fmt: skip
COLUMN = {"x86_64": 0, "aarch64": 1}
# Machine code that no IR makes here, put in place of functions' own. system: a call by its number
# and six arguments. thread: clone, with those flags, into one that sleeps for `long` for ever and
# has no stack. foreign: open, as a 32-bit program calls it.
_SIGNATURES = {
    "system": "i64 @system(i64, i64, i64, i64, i64, i64, i64)",
    "thread": "i64 @thread(i64, ptr)",
    "foreign": "i64 @foreign()",
}
_CODE = {
    "x86_64": {
        "system": "4889f8 4889f7 4889d6 4889ca 4d89c2 4d89c8 4c8b4c2408 49bb GADGET 41ffe3",
        "thread": "4989f1 31f6 31d2 4531d2 4531c0 b838000000 0f05 4885c0 7401 c3 "
                  "b823000000 4c89cf 31f6 0f05 ebf2",
        "foreign": "53 b805000000 31db 31c9 cd80 5b c3",
    },
    "aarch64": {
        "system": "e80300aa e00301aa e10302aa e20303aa e30304aa e40305aa e50306aa 50000058 "
                  "00021fd6 GADGET",
        "thread": "e90301aa 010080d2 020080d2 030080d2 040080d2 881b80d2 010000d4 400000b4 "
                  "c0035fd6 a80c80d2 e00309aa 010080d2 010000d4 fcffff17",
    },
}  # fmt: skip

PATH, MADE, DATA, LONG, ZEROS = "@victim", "@made", "@data", "@long", "@zeros"
PARENT = "%parent"  # the supervisor's process id
HERE, FILE, EVERYBODY = -100, 0o100644, 0o777  # AT_FDCWD; a regular file's mode


def _value(argument: int | str) -> str:
    if isinstance(argument, int):
        return f"i64 {argument}"
    if argument.startswith("@"):
        return f"i64 ptrtoint (ptr {argument} to i64)"
    return f"i64 {argument}"


@dataclass(frozen=True)
class Call:
    """One system call of a kernel. As an argument of a later one, `%result` is what it gave."""

    name: str
    arguments: tuple[int | str, ...] = ()
    result: str = ""

    def ir(self, machine: str) -> str:
        number = NUMBERS[self.name][COLUMN[machine]] if self.name in NUMBERS else int(self.name)
        given = [*self.arguments, *[0] * (6 - len(self.arguments))]
        to = f"%{self.result} = " if self.result else ""
        return f"{to}call i64 @system(i64 {number}, {', '.join(map(_value, given))})"


def call(name: str, *arguments: int | str, result: str = "") -> Call:
    return Call(name, arguments, result)


@dataclass(frozen=True)
class Probe:
    """`steps` are calls, or IR. `forbidden` is the call that ends it, where a box can forbid calls;
    `says`, in place of that, is a pattern of what must be said. Only on `machines`."""

    name: str
    steps: tuple[Call | str | dict[str, str], ...]
    forbidden: str = ""
    says: str = ""
    error: type[RpcError] = errors.Crashed
    machines: tuple[str, ...] = ("x86_64", "aarch64")

    def body(self, machine: str) -> str:
        lines = ["%parent = load i64, ptr %p0"]
        for step in self.steps:
            match step:
                case Call():
                    lines.append(step.ir(machine))
                case dict():
                    lines.append(step[machine])
                case _:
                    lines.append(step)
        return "\n".join([*lines, "ret i32 0"])

    def expected(self, kernel: str) -> str:
        if self.says:
            return self.says.replace("KERNEL", kernel)
        what = self.forbidden or next(s.name for s in self.steps if isinstance(s, Call))
        return f"SIGSYS in kernel '{kernel}': it called {what}, which the sandbox forbids"


def probe(name: str, *steps: Call | str | dict[str, str], forbidden: str = "", says: str = "",
          error: type[RpcError] = errors.Crashed, only: str = "") -> Probe:  # fmt: skip
    old = any(isinstance(s, Call) and NUMBERS.get(s.name, (0, 0))[1] is None for s in steps)
    machines = (only,) if only else ("x86_64",) if old else ("x86_64", "aarch64")
    return Probe(name, steps, forbidden, says, error, machines)


SIGCHLD, SIGKILL, SIG_BLOCK = 17, 9, 0
THREAD_FLAGS = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000  # as a thread has them
LATE = "kernel 'KERNEL' was still running after 600 ms"
GARBLED = "kernel 'KERNEL' sent an answer that is not its worker's"
SPIN = "br label %on\non:\nstore volatile i8 1, ptr %p0\nbr label %on\nnever:"
DEAF = call("rt_sigprocmask", SIG_BLOCK, "@ones", 0, 8)


def _loop(*body: Call | str, times: int | None = None) -> dict[str, str]:
    """The calls again and again; %turn counts."""
    last = "br label %turn_" if times is None else "br i1 %more, label %turn_, label %after"
    return {
        machine: "br label %turn_\nturn_:\n%turn = phi i64 [0, %entry], [%next, %turn_]\n"
        + "\n".join(step if isinstance(step, str) else step.ir(machine) for step in body)
        + f"\n%next = add i64 %turn, 1\n%more = icmp slt i64 %next, {times or 0}\n{last}\nafter:"
        for machine in COLUMN
    }


PROBES = (
    # ---- Processes
    probe("fork", call("fork")),
    probe("vfork", call("vfork")),
    probe("clone", call("clone", SIGCHLD)),
    probe("clone into namespaces", call("clone", SIGCHLD | 0x10000000 | 0x20000000)),
    probe("clone3", call("clone3", ZEROS, 88)),
    # The child of a child is nobody's, and ends with nobody.
    probe("double fork", call("clone", SIGCHLD, result="child"),
          "%is_child = icmp eq i64 %child, 0\nbr i1 %is_child, label %again, label %spin\nagain:",
          call("setsid"), call("clone", SIGCHLD), "br label %spin\nspin:\nbr label %spin\nnever:"),
    probe("fork bomb", _loop(call("clone", SIGCHLD)), forbidden="clone"),
    probe("threads", f"call i64 @thread(i64 {THREAD_FLAGS}, ptr @long)", forbidden="clone"),
    probe("execve", call("execve", "@shell", 0, 0)),
    probe("execveat", call("execveat", HERE, "@shell", 0, 0, 0)),
    probe("setsid", call("setsid")),
    probe("setpgid", call("setpgid", 0, PARENT)),
    # ---- Files
    probe("open", call("open", PATH, 2)),
    probe("openat", call("openat", HERE, PATH, 2)),
    probe("openat of what it has not", call("openat", HERE, "@passwd", 0)),
    probe("openat2", call("openat2", HERE, PATH, ZEROS, 24)),
    probe("creat", call("creat", MADE, 0o644)),
    probe("openat that creates", call("openat", HERE, MADE, 0o101, 0o644)),
    probe("unlink", call("unlink", PATH)),
    probe("unlinkat", call("unlinkat", HERE, PATH, 0)),
    probe("renameat2", call("renameat2", HERE, PATH, HERE, MADE, 0)),
    probe("linkat", call("linkat", HERE, PATH, HERE, MADE, 0)),
    probe("symlinkat", call("symlinkat", PATH, HERE, MADE)),
    probe("chmod", call("chmod", PATH, EVERYBODY)),
    probe("fchmodat", call("fchmodat", HERE, PATH, EVERYBODY)),
    probe("truncate", call("truncate", PATH, 0)),
    probe("mkdirat", call("mkdirat", HERE, MADE, EVERYBODY)),
    probe("mknodat", call("mknodat", HERE, MADE, FILE, 0)),
    probe("utimensat", call("utimensat", HERE, PATH, 0, 0)),
    probe("mount", call("mount", DATA, "@folder", "@tmpfs", 0, 0)),
    probe("umount2", call("umount2", "@folder", 2)),
    probe("chroot", call("chroot", "@folder")),
    probe("memfd_create", call("memfd_create", DATA, 0)),
    probe("pipe2", call("pipe2", "@room", 0)),
    # ---- The network
    *(probe(f"socket of family {name}", call("socket", family, 1, 0))
      for name, family in (("unix", 1), ("inet", 2), ("inet6", 10), ("netlink", 16))),
    probe("socketpair", call("socketpair", 1, 1, 0, "@room")),
    probe("connect", call("connect", 3, "@address", 16)),
    probe("bind", call("bind", 3, "@address", 16)),
    probe("accept4", call("accept4", 3, 0, 0, 0)),
    # ---- The supervisor, and others
    probe("getppid", call("getppid"), says="SIGSYS in kernel 'KERNEL': it called system call "),
    probe("kill the supervisor", call("kill", PARENT, SIGKILL)),
    probe("tgkill the supervisor", call("tgkill", PARENT, PARENT, SIGKILL)),
    probe("tkill the supervisor", call("tkill", PARENT, SIGKILL)),
    probe("kill the group", call("kill", 0, SIGKILL)),
    probe("kill everybody", call("kill", -1, SIGKILL)),
    probe("a signal with a message", call("rt_sigqueueinfo", PARENT, SIGKILL, ZEROS)),
    probe("pidfd_open", call("pidfd_open", PARENT, 0)),
    probe("pidfd_getfd", call("pidfd_getfd", 3, 0, 0)),
    probe("ptrace", call("ptrace", 16, PARENT, 0, 0)),
    probe("process_vm_writev", call("process_vm_writev", PARENT, ZEROS, 1, ZEROS, 1, 0)),
    probe("process_vm_readv", call("process_vm_readv", PARENT, ZEROS, 1, ZEROS, 1, 0)),
    probe("limits of the supervisor", call("prlimit64", PARENT, 7, ZEROS, 0)),
    probe("cores of the supervisor", call("sched_setaffinity", PARENT, 8, "@one")),
    probe("setpriority", call("setpriority", 0, PARENT, 19)),
    # ---- Rights
    probe("setuid", call("setuid", 0)),
    probe("setresuid", call("setresuid", 0, 0, 0)),
    probe("capset", call("capset", ZEROS, ZEROS)),
    probe("outlive the supervisor", call("prctl", 1, 0)),
    probe("prctl of dumps", call("prctl", 4, 1)),
    probe("unshare", call("unshare", 0x10000000)),
    probe("setns", call("setns", 3, 0)),
    probe("personality", call("personality", 0x0400000)),
    # ---- What systems have had holes in
    probe("io_uring_setup", call("io_uring_setup", 8, "@room")),
    probe("bpf", call("bpf", 0, ZEROS, 64)),
    probe("perf_event_open", call("perf_event_open", ZEROS, 0, -1, -1, 0)),
    probe("userfaultfd", call("userfaultfd", 1)),
    probe("shmget", call("shmget", 0, 4096, 0o1666)),
    probe("a number that is none", call("9999"),
          says="SIGSYS in kernel 'KERNEL': it called system call 9999, which the sandbox forbids"),
    probe("a 32-bit program's open", "call i64 @foreign()", only="x86_64",
          says="SIGSYS in kernel 'KERNEL': it called a call of another machine, which the sandbox"),
    # ---- Its descriptors
    probe("write on every descriptor", _loop(call("write", "%turn", DATA, 5), times=64),
          forbidden="write"),
    probe("writev on every descriptor", _loop(call("writev", "%turn", ZEROS, 1), times=64),
          forbidden="writev"),
    probe("ioctl", call("ioctl", 0, 0x5412, DATA)),
    probe("close its socket", call("close", 3)),
    probe("close everything", call("close_range", 0, -1, 0)),
    probe("replace its socket", call("dup3", 4, 3, 0)),
    probe("shut its socket", call("shutdown", 3, 2)),
    probe("pass descriptors", call("sendmsg", 3, ZEROS, 0)),
    probe("send on another descriptor", call("sendto", 4, DATA, 5, 0, 0, 0)),
    probe("flood its socket", _loop(call("sendto", 3, ZEROS, 4096, 0, 0, 0)), says=GARBLED),
    probe("forge a short answer", call("sendto", 3, DATA, 5, 0, 0, 0), SPIN, says=GARBLED),
    probe("forge an empty answer", call("sendto", 3, DATA, 0, 0, 0, 0), SPIN,
          says="kernel 'KERNEL' closed the socket of its worker"),
    probe("steal the next order", call("recvmsg", 3, ZEROS, 0), says=LATE, error=errors.Timeout),
    # ---- Time, and signals of its own
    probe("never end", SPIN, says=LATE, error=errors.Timeout),
    probe("sleep for ever", call("nanosleep", LONG, 0), says=LATE, error=errors.Timeout),
    probe("wait for ever", call("futex", ZEROS, 0, 0, 0), says=LATE, error=errors.Timeout),
    probe("be deaf, and never end", DEAF, SPIN, says=LATE, error=errors.Timeout),
    probe("be deaf, and reach astray", DEAF, "store volatile i8 1, ptr inttoptr (i64 16 to ptr)",
          says="SIGSEGV in kernel 'KERNEL': it reached outside its buffers"),
    probe("be deaf, and open", DEAF, call("openat", HERE, PATH, 2),
          says="SIGSYS in kernel 'KERNEL': it made a system call, which the sandbox forbids"),
    probe("alarm", call("alarm", 1), SPIN),
    probe("setitimer", call("setitimer", 0, ZEROS, 0)),
    probe("timer_create", call("timer_create", 0, 0, "@room")),
    probe("ignore what ends it", call("rt_sigaction", 11, ZEROS, 0, 8)),
    probe("sigaltstack", call("sigaltstack", ZEROS, 0)),
    probe("rt_sigreturn", call("rt_sigreturn")),
    probe("end by itself", call("exit_group", 0),
          says="the worker ended by itself in kernel 'KERNEL', with status 0"),
    probe("end one thread", call("exit", 0)),
    probe("overflow its stack", "%deep = call i32 @deeper(i32 1)",
          says="SIGSEGV in kernel 'KERNEL': it reached outside its buffers or overflowed"),
)  # fmt: skip


def of_machine(machine: str) -> dict[str, Probe]:
    return {p.name: p for p in PROBES if machine in p.machines}


def _text(name: str, text: str) -> str:
    data = text.encode() + b"\0"
    escaped = "".join(f"\\{byte:02x}" for byte in data)
    return f'{name} = internal constant [{len(data)} x i8] c"{escaped}"\n'


def _globals(folder: str) -> str:
    return (
        _text(PATH, f"{folder}/victim")
        + _text(MADE, f"{folder}/made")
        + _text("@folder", folder)
        + _text("@shell", "/bin/sh")
        + _text("@passwd", "/etc/passwd")
        + _text("@tmpfs", "tmpfs")
        + _text(DATA, "data")
        + "@long = internal global [2 x i64] [i64 1000000, i64 0]\n"
        "@zeros = internal global [8192 x i8] zeroinitializer, align 16\n"
        "@room = internal global [256 x i8] zeroinitializer, align 16\n"
        "@one = internal global i64 1\n"
        "@ones = internal global i64 -1\n"
        '@address = internal global [16 x i8] c"\\02\\00\\00\\09\\7f\\00\\00\\01\\00\\00\\00\\00'
        '\\00\\00\\00\\00"\n'
    )


def kernel_of(tried: Probe, machine: str, folder: str, model: Map | None = None) -> bytes:
    """An object with the kernel `probe`; with those of `model_of` before it, where there is one."""
    code = _CODE[machine]
    room = "%place = alloca i8\n" + "store volatile i8 1, ptr %place\n" * 30  # no relocations
    names = ["add64", "double64"] if model else []
    says = metadata_of(machine, [*names, "probe"]) | ({"model": model} if model else {})
    text = _globals(folder) + function("probe", 1, tried.body(machine))
    text += "".join(function(name, *BODIES[name]) for name in names)
    for name in code:
        text += f"define {_SIGNATURES[name]} noinline {{\n{room}ret i64 0\n}}\n"
    made = bytearray(assembled(machine, text, msgpack.packb(says)))
    for name, instructions in code.items():
        address = gadget(machine).to_bytes(8, "little").hex()
        replace(made, name, bytes.fromhex(instructions.replace("GADGET", address)))
    return bytes(made)


@dataclass
class Bench:
    """A session in which one probe after the other is tried. `folder` is on the board; `state`
    tells of it and of the session's processes, all that a probe may not change."""

    session: Session
    machine: str
    folder: str
    state: Callable[[], str]

    def __post_init__(self) -> None:
        self.scratch = self.session.tensor(np.zeros(64, np.uint8))
        self.supervisor, _ = self.session.call("tensor.descriptor", self.scratch.handle)
        self.add = self.session.load(module_of("add", machine=self.machine))["add"]
        self.x = self.session.tensor(X)
        self.goes_on()
        self.before = self.state()

    def goes_on(self) -> None:
        total = self.session.tensor(0 * X)
        self.add(self.x, self.x, total)
        np.testing.assert_array_equal(total.numpy(), 2 * X)

    def reaches_nothing(self, tried: Probe, slack: float = 0.0) -> None:
        """`slack`: seconds that a call to this board takes where it has nothing to do."""
        given = np.zeros(8, "<i8")
        given[0] = self.supervisor
        self.scratch.write(given.view(np.uint8))
        module = self.session.load(kernel_of(tried, self.machine, self.folder))
        endless = tried.error is errors.Timeout
        began = time.monotonic()
        with pytest.raises(tried.error) as caught:
            module["probe"](self.scratch, timeout=TIMEOUT if endless else PLENTY)
        assert time.monotonic() - began < (TIMEOUT if endless else 0) + AFTER + slack
        assert re.match(tried.expected("probe"), caught.value.what), caught.value.what
        module.close()
        self.goes_on()
        assert self.state() == self.before
