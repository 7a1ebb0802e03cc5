"""A board for tests: the runtime as a child process, and modules whose kernels go right or wrong.

The client is as plain as can be: it sends a request and waits for what comes back.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import select
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import msgpack
import numpy as np
import numpy.typing as npt
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from mlc_deploy.board.runtime_files import runtime_file
from mlc_rpc.wire import MAX_CHUNK, PREAMBLE, VERSION

Array = npt.NDArray[np.generic]
Map = Mapping[str, Any]
PATIENCE = 60.0  # seconds until a silent board fails a test


class Refusal(Exception):
    """The board's error: kind, text, details."""

    def __init__(self, kind: str, text: str, details: dict[str, Any]) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text, self.details = kind, text, details


class Gone(Exception):
    """The stream has ended."""


@dataclass
class Board:
    """One runtime and its stream. Use it as a context; leaving it ends the stream."""

    machine: str = "x86_64"
    greet: bool = True
    qemu: tuple[str, ...] = ()  # its options, where it is used
    process: subprocess.Popen[bytes] = field(init=False)
    waiting: dict[int | None, list[Any]] = field(default_factory=dict)
    last: int = 0

    def __post_init__(self) -> None:
        emulator = (
            [] if self.machine == platform.machine() else [f"qemu-{self.machine}", *self.qemu]
        )
        self.process = subprocess.Popen(
            # As root in QEMU, whose counting plugin writes a file in the process that is counted.
            [*emulator, str(runtime_file(self.machine)), *(["--as-root"] if emulator else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.unpacker = msgpack.Unpacker(raw=False, max_buffer_size=1 << 22)
        preamble = b""
        while len(preamble) < len(PREAMBLE):
            preamble += os.read(self.output, len(PREAMBLE) - len(preamble))
        assert preamble == PREAMBLE
        if self.greet:
            self.call("hello", *VERSION, bytes(32))

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.stdout.close()

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.input, view) :]

    def ask(self, method: str, *params: Any) -> int:
        self.last += 1
        self.send(msgpack.packb([0, self.last, method, list(params)]))
        return self.last

    def receive(self, patience: float = PATIENCE) -> list[Any]:
        """The next response, whoever asked."""
        while True:
            for message in self.unpacker:
                assert message[0] == 1 and len(message) == 4
                return list(message)
            if not select.select([self.output], [], [], patience)[0]:
                raise TimeoutError("the board is silent")
            data = os.read(self.output, 1 << 20)
            if not data:
                raise Gone
            self.unpacker.feed(data)

    def answer(self, request: int | None) -> Any:
        while request not in self.waiting:
            message = self.receive()
            self.waiting[message[1]] = message
        _, _, error, result = self.waiting.pop(request)
        if error is not None:
            raise Refusal(*error)
        return result

    def call(self, method: str, *params: Any) -> Any:
        return self.answer(self.ask(method, *params))

    # ---- Conveniences ----

    def tensor(self, array: Array) -> int:
        tensor: int = self.call("tensor.new", array.dtype.name, list(array.shape))
        data = np.ascontiguousarray(array).tobytes()
        for at in range(0, len(data), MAX_CHUNK):
            self.call("tensor.write", tensor, at, data[at : at + MAX_CHUNK])
        return tensor

    def numpy(self, tensor: int, like: Array) -> Array:
        data = b"".join(
            self.call("tensor.read", tensor, at, min(MAX_CHUNK, like.nbytes - at))
            for at in range(0, like.nbytes, MAX_CHUNK)
        )
        return np.frombuffer(data, like.dtype).reshape(like.shape)

    def blob(self, data: bytes) -> bytes:
        name = hash_of(data)
        if self.call("blob.has", name)[1]:
            return name
        for at in range(0, max(len(data), 1), MAX_CHUNK):
            self.call("blob.put", name, len(data), at, data[at : at + MAX_CHUNK])
        return name

    def load(self, data: bytes, weights: bytes | None = None) -> dict[str, Any]:
        blob = None if weights is None else self.blob(weights)
        answer: dict[str, Any] = self.call("module.load", self.blob(data), blob)
        return answer

    def children(self) -> list[int]:
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(path) as file:
            return [int(word) for word in file.read().split()]


def hash_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def refused(board: Board, *request: Any) -> Refusal:
    """The error that the board answers this request with."""
    try:
        result = board.call(*request)
    except Refusal as error:
        return error
    raise AssertionError(f"{request[0]} is not refused but answered: {result}")


# ---- Modules ----

X = np.arange(64, dtype=np.float32)
BYTES = np.zeros(64, np.uint8)
WEIGHTS = np.linspace(-1, 1, 64, dtype=np.float32).tobytes()

TRIPLES = {
    "x86_64": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "arm": "armv7-unknown-linux-gnueabihf",
}

_LOOP = """
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %loop]
  %more = icmp slt i64 %i, {count}
  br i1 %more, label %loop, label %done
loop:
  {body}
  %next = add i64 %i, 1
  br label %head
done:
  ret i32 0
"""


def _pointwise(count: str, inputs: int, value: str) -> str:
    """out[i] = value of in0[i], in1[i] as %x0, %x1; float32."""
    loads = "\n".join(
        f"%a{k} = getelementptr float, ptr %p{k}, i64 %i\n%x{k} = load float, ptr %a{k}"
        for k in range(inputs)
    )
    store = f"%to = getelementptr float, ptr %p{inputs}, i64 %i\nstore float %y, ptr %to"
    return _LOOP.format(count=count, body=f"{loads}\n%y = {value}\n{store}")


# Kernels: how many parameters they take, and their bodies, with pointers %p0, %p1, ...
_SCALAR = "%s = getelementptr ptr, ptr %args, i32 1\n%sp = load ptr, ptr %s\n"
_WORK = "%w = getelementptr ptr, ptr %args, i32 2\n%wp = load ptr, ptr %w\n"
BODIES: dict[str, tuple[int, str]] = {
    "add": (3, _SCALAR + "%n = load i64, ptr %sp\n" + _pointwise("%n", 2, "fadd float %x0, %x1")),
    "add64": (3, _pointwise("64", 2, "fadd float %x0, %x1")),
    "double64": (2, _pointwise("64", 1, "fadd float %x0, %x0")),
    "exp64": (2, _pointwise("64", 1, "call float @expf(float %x0)")),
    "count": (1, "%x = load i32, ptr %p0\n%y = add i32 %x, 1\nstore i32 %y, ptr %p0\nret i32 0"),
    "status": (1, "ret i32 1"),
    "workspace": (
        1,
        _WORK + "%last = getelementptr i8, ptr %wp, i32 4095\nstore volatile i8 7, ptr %last\n"
        "%v = load volatile i8, ptr %last\nstore i8 %v, ptr %p0\nret i32 0",
    ),
    "wild": (1, "store volatile i8 1, ptr inttoptr (i64 16 to ptr)\nret i32 0"),
    "trap": (1, "call void @llvm.trap()\nret i32 0"),
    "spin": (1, "br label %on\non:\nstore volatile i8 1, ptr %p0\nbr label %on"),
    "illegal": (1, "store volatile i8 1, ptr %p0\n" * 30 + "ret i32 0"),  # see _CODE
    "abort": (1, "store volatile i8 1, ptr %p0\n" * 30 + "ret i32 0"),
    "deep": (1, "%r = call i32 @deeper(i32 1)\nret i32 %r"),
    "overrun": (
        1,
        "br label %on\non:\n%i = phi i64 [0, %entry], [%n, %on]\n"
        "%at = getelementptr i8, ptr %p0, i64 %i\nstore volatile i8 1, ptr %at\n"
        "%n = add i64 %i, 1\nbr label %on",
    ),
}
# Machine code of kernels that no IR makes, put in place of what they were compiled to: an
# instruction that no CPU has; getpid, then kill with SIGABRT, which is what abort() comes to.
_CODE = {
    "x86_64": {
        "illegal": "0f0b",
        "abort": "b827000000 0f05 89c7 be06000000 b83e000000 0f05 31c0 c3",
    },
    "aarch64": {
        "illegal": "00000000",
        "abort": "881580d2 010000d4 c10080d2 281080d2 010000d4 00008052 c0035fd6",
    },
    "arm": {
        "illegal": "f000f0e7",
        "abort": "04702de5 1470a0e3 000000ef 0610a0e3 2570a0e3 000000ef 04709de4 0000a0e3 1eff2fe1",
    },
}
_DEEPER = """
declare void @llvm.trap()
declare float @expf(float)
define internal i32 @deeper(i32 %x) noinline nounwind optnone {
  %room = alloca [4096 x i8]
  store volatile i8 1, ptr %room
  %y = add i32 %x, 1
  %r = call i32 @deeper(i32 %y)
  %v = load volatile i8, ptr %room
  %w = zext i8 %v to i32
  %z = add i32 %r, %w
  ret i32 %z
}
"""


def function(name: str, count: int, body: str) -> str:
    """A kernel in LLVM IR; %p0, %p1, ... are its `count` tensors."""
    pointers = "\n".join(
        f"%q{k} = getelementptr ptr, ptr %data, i32 {k}\n%p{k} = load ptr, ptr %q{k}"
        for k in range(count)
    )
    return (
        f"define i32 @{name}(ptr %args, i32 %begin, i32 %end) nounwind {{\nentry:\n"
        f"%data = load ptr, ptr %args\n{pointers}\n{body}\n}}\n"
    )


@cache
def object_of(machine: str, names: tuple[str, ...], metadata: bytes | None) -> bytes:
    """An object with those kernels, and `metadata` as its section ".mlc"."""
    text = "".join(function(name, *BODIES[name]) for name in names)
    result = bytearray(assembled(machine, text, metadata))
    for name in _CODE[machine].keys() & set(names):
        replace(result, name, bytes.fromhex(_CODE[machine][name]))
    return bytes(result)


def assembled(machine: str, text: str, metadata: bytes | None) -> bytes:
    """An object of what `text` has, in LLVM IR, and of `metadata`."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    text = f'target triple = "{TRIPLES[machine]}"\n{_DEEPER}{text}'
    if metadata is not None:  # `exclude` keeps the section out of what is loaded
        escaped = "".join(f"\\{byte:02x}" for byte in metadata)
        text += (
            f'@mlc = private constant [{len(metadata)} x i8] c"{escaped}", section ".mlc", '
            "align 1, !exclude !0\n"
            '@llvm.compiler.used = appending global [1 x ptr] [ptr @mlc], section "llvm.metadata"\n'
            "!0 = !{}\n"
        )
    module = llvm.parse_assembly(text)
    target = llvm.Target.from_triple(TRIPLES[machine])
    maker = target.create_target_machine(reloc="static", codemodel="small", opt=0)
    return bytes(maker.emit_object(module))


def replace(object_: bytearray, name: str, code: bytes) -> None:
    """The function's first instructions become `code`."""
    elf = ELFFile(io.BytesIO(object_))
    table = elf.get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    symbols = table.get_symbol_by_name(name)
    assert symbols
    symbol = symbols[0]
    assert len(code) <= symbol["st_size"]
    at = elf.get_section(symbol["st_shndx"])["sh_offset"] + symbol["st_value"]
    object_[at : at + len(code)] = code


def param(name: str, dtype: str, shape: Sequence[int | str], output: bool = False) -> Map:
    return {"name": name, "dtype": dtype, "shape": list(shape), "output": output}


FLOATS = [
    param("a", "float32", [64]),
    param("b", "float32", [64]),
    param("c", "float32", [64], output=True),
]
SCRATCH = [param("p", "uint8", [64], output=True)]
SIGNATURES: dict[str, Map] = {
    "add": {
        "params": [param("a", "float32", ["n"]), param("b", "float32", ["n"]),
                   param("c", "float32", ["n"], output=True)],
        "scalars": ["n"],
        "tasks": "n",
    },
    "add64": {"params": FLOATS},
    "double64": {"params": [FLOATS[0], FLOATS[2]]},
    "exp64": {"params": [FLOATS[0], FLOATS[2]]},
    "count": {"params": [param("counter", "int32", [1], output=True)]},
    "workspace": {"params": SCRATCH, "workspace": 4096},
}  # fmt: skip


def metadata_of(machine: str, names: Iterable[str]) -> dict[str, Any]:
    """What an object with those kernels says of itself."""
    kernels = [
        {"name": name, "params": SCRATCH, "scalars": [], "tasks": 1, "workspace": 0}
        | dict(SIGNATURES.get(name, {}))
        for name in names
    ]
    return {
        "abi": 1,
        "target": f"llvm -mtriple={TRIPLES[machine]}",
        "machine": machine,
        "features": [],
        "kernels": kernels,
    }


def module_of(*names: str, machine: str = "x86_64", says: Map | None = None) -> bytes:
    """An object with those kernels; `says` replaces what its metadata says."""
    described = metadata_of(machine, names) | dict(says or {})
    return object_of(machine, names, msgpack.packb(described))


IN_ARENA, IN_WEIGHTS, IN_INPUT, IN_OUTPUT = range(4)  # mlc_space


def model_of(weights: bytes, **changes: Any) -> dict[str, Any]:
    """input -> double64 -> arena[64:] -> add64 with the weights -> arena -> add64 -> output."""
    size = 256
    calls = [
        [1, "first", [[IN_INPUT, 0, 0, size], [IN_ARENA, 0, 256, size]]],
        [0, "second", [[IN_ARENA, 0, 256, size], [IN_WEIGHTS, 0, 0, size], [IN_ARENA, 0, 0, size]]],
        [0, "third", [[IN_ARENA, 0, 0, size], [IN_ARENA, 0, 256, size], [IN_OUTPUT, 0, 0, size]]],
    ]
    model = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": [1, 64]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": [1, 64]}],
        "arena": 512,
        "weights": len(weights),
        "weights_hash": hash_of(weights),
        "calls": calls,
    }
    return model | changes


def model(**changes: Any) -> bytes:
    """An object with that model; `changes` replace entries of it."""
    return module_of("add64", "double64", says={"model": model_of(WEIGHTS, **changes)})
