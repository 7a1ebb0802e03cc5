"""The wire between the client and the program on the board, described once.

A stream begins with the board's 16-byte PREAMBLE (the client discards up to 64 KiB that a login
shell printed before it). Then both sides send msgpack-rpc messages as published:

    request   [0, id, method, params]      client -> board; id is a uint32, never reused while open
    response  [1, id, error, result]       board -> client; error is nil, or [kind, text, details]
    notify    [2, method, params]          either way; unknown methods are ignored

One message is at most MAX_MESSAGE bytes and MAX_DEPTH containers deep; tensors and blobs go in
chunks of at most MAX_CHUNK bytes. Responses come in any order: `ping`, and everything else the
supervisor answers itself, overtakes a running kernel.

Versions: `hello` comes first and exchanges versions and nonces and nothing else. A different major
version is refused by both sides, naming both versions; a different minor version means that the
board may not know every method, and answers those it does not know with kind "protocol".

The C side holds the same method table (`device_runtime/src/serve.c`); a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREAMBLE = b"\0mlc-runtime\0\r\n\0"
VERSION = (1, 0)  # major, minor
MAX_MESSAGE = 1 << 20
MAX_CHUNK = 1 << 19
MAX_DEPTH = 8
MAX_BANNER = 1 << 16
HASH_BYTES = 32  # BLAKE2b-256 of a blob's content names it


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the method table.

    `params` and `result` are for the reader: msgpack types in order. `answered_by` says which
    process on the board does the work; the supervisor's methods are answered while a kernel runs.
    """

    name: str
    params: str
    result: str
    answered_by: Literal["supervisor", "worker"]


METHODS: tuple[Method, ...] = (
    Method("hello", "major, minor, nonce:bin32", "[major, minor, nonce:bin32]", "supervisor"),
    # {runtime:str, machine:str, abi:uint, features:[str], kernel:str, cores:uint, memory:uint
    #  (bytes), page_size:uint, cpus:[{model:str, midr:uint}]}
    Method("describe", "", "map", "supervisor"),
    Method("ping", "payload:any", "payload", "supervisor"),
    # Tensors live in memory that outlives a worker's crash. offsets and sizes in bytes.
    Method("tensor.new", "dtype:str, shape:[uint]", "tensor:uint", "supervisor"),
    Method("tensor.write", "tensor, offset, data:bin", "nil", "supervisor"),
    Method("tensor.read", "tensor, offset, size", "bin", "supervisor"),
    # kind: "zero", or "random": each element from the top bits of one output x of xorshift64* of
    # the seed (0 stands for 0x9e3779b97f4a7c15). Integers and bool are x's top bits; floats are
    # k / 2**n - 1, in [-1, 1), of its top n + 1 bits k, n = 23, 52, 10, 7 for float32, float64,
    # float16, bfloat16.
    Method("tensor.fill", "tensor, kind:str, seed:uint", "nil", "supervisor"),
    Method("tensor.free", "tensor", "nil", "supervisor"),
    # Blobs are named by the hash of their content; put appends at `offset`, which must be what
    # `has` said is there already, and the last put checks the hash.
    Method("blob.has", "hash:bin32", "[size, complete:bool]", "supervisor"),
    Method("blob.put", "hash:bin32, total, offset, data:bin", "size", "supervisor"),
    Method("blob.get", "hash:bin32, offset, size", "bin", "supervisor"),
    # Refused while a module needs the blob; freeing one that is not there is no error.
    Method("blob.free", "hash:bin32", "nil", "supervisor"),
    # -> {module:uint, arena:tensor or nil, image_bytes:uint, metadata:bin}
    # `weights` is the blob that the module's model names, or nil where there is none. `metadata`
    # is the object's ".mlc" section as it stands (mlc_abi.h), for the client to decode; an object
    # whose section is larger than MAX_CHUNK is refused.
    Method("module.load", "object:bin32, weights:bin32|nil", "map", "worker"),
    Method("module.free", "module", "nil", "worker"),
    # Run once. kernel: its name, or nil for the module's model (then args are inputs followed by
    # outputs). Each arg is a tensor id. options: {timeout_ms:uint (0: none), mark:bool (tell
    # QEMU's counting plugin where each layer begins and ends), until:uint (stop after so many
    # calls), threads:uint} -> {nanoseconds:[uint] per call of the call table (one for a kernel)}
    Method("run", "module, kernel:str|nil, args:[tensor], options:map", "map", "worker"),
    # Time on the board. options: those of `run` but mark, and number, repeat, min_repeat_ms,
    # limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown, cache_flush_bytes
    # -> {samples:[float] seconds per run, one per repeat, number:[uint] runs in each repeat}
    Method("time", "module, kernel:str|nil, args:[tensor], options:map", "map", "worker"),
)

# The first element of an error; the client raises one class for each.
ERROR_KINDS = ("protocol", "refused", "crashed", "timeout", "memory")
# details of "crashed" and "timeout": {signal:str, kernel:str, layer:str, call:uint}; signal is ""
# when a kernel returned a status or was ended for its timeout. A frame that is not msgpack-rpc ends
# the session: the last response then has id nil and an error of kind "protocol".
