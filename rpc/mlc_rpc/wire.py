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

TCP alone has more, since anyone may connect: `auth` follows `hello`, and before both hold nothing
else is answered, no message is longer than MAX_GREETING bytes, and the whole takes 5 seconds at
most. Client and board share a key of KEY_BYTES random bytes. MAC is BLAKE2b-256 keyed with it, of
a 16-byte purpose (ASCII, zeros after it) and the hellos: the client's major and minor and the
board's, each a uint32, the client's nonce, the board's nonce. Numbers are big-endian.

    auth's proof     MAC("client proves", hellos)
    auth's result    MAC("board proves", hellos)

Once the result is sent, both streams consist of records, and messages lie in their payloads, one
after the other, without regard to where a record ends:

    record   length:uint32  tag:16 bytes  payload       length: of the payload, 1 to MAX_RECORD

The tag is the first 16 bytes of BLAKE2b-256 of number:uint64, length:uint32 and payload; numbers
count a direction's records from 0. It is keyed with MAC("client sends", hellos) one way and with
MAC("board sends", hellos) the other. A record whose tag is wrong ends the session without a word.
This proves who sent what, and in which order; it hides nothing (docs/threat_model.md).

Heartbeat: after `heartbeat`, a client that sends nothing for so long is dead, and its session ends.
A client that wants to know whether the board lives calls `ping`.

The C side holds the same method table (`device_runtime/src/serve.c`); a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREAMBLE = b"\0mlc-runtime\0\r\n\0"
VERSION = (1, 1)  # major, minor
MAX_MESSAGE = 1 << 20
MAX_CHUNK = 1 << 19
MAX_DEPTH = 8
MAX_BANNER = 1 << 16
HASH_BYTES = 32  # BLAKE2b-256 of a blob's content names it
NONCE_BYTES = 32
KEY_BYTES = 32
TAG_BYTES = 16
MAX_GREETING = 1 << 12
MAX_RECORD = 1 << 16
MAX_THREADS = 256
MAX_LAYER_TIMES = 1 << 14  # samples times calls, where `time` times each call
# What a board's system can take from the process that runs kernels; old ones and emulators cannot
# do all of it. syscalls: all but those that computing takes. files: Landlock, no path can be used.
# tcp, signals: nor a port, nor a signal to others. processes: a pid namespace, in which others have
# no name and which ends as a whole. user: it is not the one who started the program. memory: nobody
# writes to weights, and tensors keep their size (seals).
BOX = ("syscalls", "files", "tcp", "signals", "processes", "user", "memory")


def version_refusal(major: int, minor: int) -> tuple[str, str] | None:
    """What is wrong with the board's version and what to do about it; None for nothing."""
    if major == VERSION[0]:
        return None
    return (
        f"the board's program speaks version {major}.{minor} of the wire, "
        f"this client version {VERSION[0]}.{VERSION[1]}",
        "use the client and the board's program of the same release",
    )


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
    # On TCP only; elsewhere, and a second time, it is refused.
    Method("auth", "proof:bin32", "proof:bin32", "supervisor"),
    # {runtime:str, machine:str, abi:uint, features:[str], kernel:str, cores:uint, memory:uint
    #  (bytes), page_size:uint, boot:str (the kernel's id of this boot; "" where it does not say),
    #  cpus:[{model:str, midr:uint}], fast_cores:uint (of the fastest kind, and left to the program:
    #  as many threads are best), slow_cores:[uint] (numbers of those of the slowest kind; [] where
    #  all are of one kind, or the kernel does not say), allowed_cores:[uint] (numbers of those that
    #  the program may use), box:[str] (of BOX, what holds for kernels there)}
    Method("describe", "", "map", "supervisor"),
    Method("ping", "payload:any", "payload", "supervisor"),
    # From now on, milliseconds without a byte from the client end the session; 0: none does.
    Method("heartbeat", "milliseconds:uint", "nil", "supervisor"),
    # Tensors live in memory that outlives a worker's crash. offsets and sizes in bytes.
    Method("tensor.new", "dtype:str, shape:[uint]", "tensor:uint", "supervisor"),
    Method("tensor.write", "tensor, offset, data:bin", "nil", "supervisor"),
    Method("tensor.read", "tensor, offset, size", "bin", "supervisor"),
    # kind: "zero", or "random": each element from the top bits of one output x of xorshift64* of
    # the seed (0 stands for 0x9e3779b97f4a7c15). Integers and bool are x's top bits; floats are
    # k / 2**n - 1, in [-1, 1), of its top n + 1 bits k, n = 23, 52, 10, 7 for float32, float64,
    # float16, bfloat16.
    Method("tensor.fill", "tensor, kind:str, seed:uint", "nil", "supervisor"),
    # Where a client on the board's own machine may map it: /proc/<process>/fd/<descriptor>, a
    # memory file of the tensor's bytes, until the tensor is freed.
    Method("tensor.descriptor", "tensor", "[process:uint, descriptor:uint]", "supervisor"),
    Method("tensor.free", "tensor", "nil", "supervisor"),
    # Blobs are named by the hash of their content; put appends at `offset`, which must be what
    # `has` said is there already, and the last put checks the hash. Once the blob is complete, by
    # another session too, what is put is not needed, and succeeds. What a cache has is read and
    # hashed by `has` (a whole blob) and by a put of no data (a part), and pings overtake that.
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
    # QEMU's counting plugin where each layer begins and ends), from:uint, until:uint (the model's
    # calls from the one up to, not including, the other; all by default), threads:uint (1 to
    # MAX_THREADS, which share each call's tasks; 1 by default, and where there are marks),
    # cores:str ("fast", "slow", or numbers as "0-3" or "4,5": where the threads stay; "", the
    # default, is on the fast ones while there are as many, and then on all)}
    # -> {nanoseconds:[uint] per call that ran (one for a kernel)}
    Method("run", "module, kernel:str|nil, args:[tensor], options:map", "map", "worker"),
    # Time on the board. options: those of `run` but mark, and number, repeat, min_repeat_ms,
    # limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown, cache_flush_bytes
    # and layers:bool (false by default: true times each call by itself too)
    # -> {samples:[float] seconds per run, one per repeat, number:[uint] runs in each repeat,
    #  cores:[uint] that the threads were pinned to, facts:[str] names of what follows,
    #  before:[[uint|nil]] each fact before the first sample of a row, after:[[uint|nil]] and after
    #  its last, each:uint samples in a row, layers:[[uint]] nanoseconds per run of each call, for
    #  each sample (empty where not asked for), layer_cost_s:float seconds that timing a call has
    #  added to each of those}
    # A fact that the board's kernel does not tell is nil. facts: core (that the first thread is
    # on), clock_khz, clock_limit_khz (that the system allows), clock_most_khz (that the core could)
    # of that core; zone0_mc to zone7_mc (temperatures, thousandths of a degree Celsius, nil below
    # 0), load_percent (of a core, in the last minute), throttled (a Raspberry Pi's word); and
    # counts, by which the sample is `after` less `before`: voluntary_switches,
    # involuntary_switches, major_faults and cpu_us (of all threads), cycles, instructions and
    # cache_misses (outside the kernel).
    Method("time", "module, kernel:str|nil, args:[tensor], options:map", "map", "worker"),
)

# The first element of an error; the client raises one class for each.
ERROR_KINDS = ("protocol", "refused", "crashed", "timeout", "memory")
# details of "crashed" and "timeout": {signal:str, kernel:str, layer:str, call:uint}; signal is ""
# when a kernel returned a status or was ended for its timeout. A frame that is not msgpack-rpc ends
# the session: the last response then has id nil and an error of kind "protocol".
