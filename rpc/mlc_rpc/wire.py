"""The wire between the client and the program on the board, described once.

A stream begins with the board's 16-byte PREAMBLE (the client discards up to 64 KiB that a login
shell printed before it). Then both sides send msgpack-rpc messages as published:

    request   [0, id, method, params]      client -> board; id is a uint32, never reused while open
    response  [1, id, error, result]       board -> client; error is nil, or [kind, text, details]
    notify    [2, method, params]          either way; unknown methods are ignored

Each method has the kind of its response (METHODS, mlc_rpc/kinds.py). A response of another kind
ends the session with a ProtocolError.

One message is at most MAX_MESSAGE bytes and MAX_DEPTH containers deep; tensors and blobs go in
chunks of at most MAX_CHUNK bytes. Responses come in any order: `ping`, and everything else that the
supervisor answers itself, overtakes a running kernel. One `run` can be asked for while another one
of the same module is under way; it begins when that one has ended. Everything else that needs the
worker is refused meanwhile, as busy.

Versions: `hello` comes first; it exchanges versions and nonces only. Both sides refuse a different
major version, naming both versions. With a different minor version, the board may not know every
method; it answers unknown ones with kind "protocol".

On TCP anyone may connect, so `auth` follows `hello`. Until both have succeeded, nothing else is
answered and no message is longer than MAX_GREETING bytes; the two take 5 seconds at most. Client
and board share a key of KEY_BYTES random bytes. MAC is BLAKE2b-256 keyed with it, of a 16-byte
purpose (ASCII, padded with zeros) and the hellos: the client's major and minor and the board's,
each a uint32, the client's nonce, the board's nonce. Numbers are big-endian.

    auth's proof     MAC("client proves", hellos)
    auth's result    MAC("board proves", hellos)

After the result, both streams consist of records. Their payloads, joined, are the messages; a
message may span records:

    record   length:uint32  tag:16 bytes  payload       length: of the payload, 1 to MAX_RECORD

The tag is the first 16 bytes of BLAKE2b-256 of number:uint64, length:uint32 and payload; numbers
count a direction's records from 0. Its key is MAC("client sends", hellos) in one direction,
MAC("board sends", hellos) in the other. A record with a wrong tag ends the session without an
answer. This proves who sent what, and in which order; it hides nothing
(docs/explanation/threat_model.md).

Heartbeat: `heartbeat` sets after how many silent milliseconds the board takes the client for dead
and ends the session. A client calls `ping` to see whether the board lives.

The C side holds the same method table (`device_runtime/src/serve.c`); a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlc_rpc.kinds import Bool, Data, Kind, Many, Map, Maybe, Nil, Real, Row, Text, Uint, Word
from mlc_rpc.source import MAX_DEPTH as MAX_DEPTH
from mlc_rpc.source import MAX_MESSAGE as MAX_MESSAGE
from mlc_targets.object_format import MAX_OPERANDS

PREAMBLE = b"\0mlc-runtime\0\r\n\0"
VERSION = (1, 1)  # major, minor
REQUEST, RESPONSE, NOTIFY = 0, 1, 2
MAX_CHUNK = 1 << 19
SAME_RELEASE = "use the client and the board's program of the same release"
MAX_METHOD = 64  # bytes of a method's name
MAX_BANNER = 1 << 16
HASH_BYTES = 32  # BLAKE2b-256 of a blob's content names it
NONCE_BYTES = 32
KEY_BYTES = 32
TAG_BYTES = 16
MAX_GREETING = 1 << 12
MAX_RECORD = 1 << 16
MAX_THREADS = 256
MAX_SPANS = 1 << 13  # of a run: later ones are not recorded
MAX_ROWS = 500  # of conditions; with more samples, a row is for several of them
MAX_LAYER_TIMES = 1 << 14  # samples times calls, where `time` times each call
# Restrictions on the process that runs kernels; old systems and emulators lack some. syscalls: only
# those that computing needs. files: no path can be opened (Landlock). tcp, signals: no port can be
# used, no other process signalled. processes: a pid namespace, which hides other processes and ends
# as a whole. user: not the one who started the program. memory: weights cannot be written, tensors
# keep their size (seals).
BOX = ("syscalls", "files", "tcp", "signals", "processes", "user", "memory")
MAX_CALLS = 1 << 19  # in an answer
MAX_FACTS = 64


def version_refusal(major: int, minor: int) -> tuple[str, str] | None:
    """What is wrong with the board's version, and how to mend it; None if nothing."""
    if major == VERSION[0]:
        return None
    return (
        f"the board's program speaks version {major}.{minor} of the wire, "
        f"this client version {VERSION[0]}.{VERSION[1]}",
        SAME_RELEASE,
    )


# ---- The kinds of answers ----

ID = Uint(1, (1 << 32) - 1)  # of a tensor or a module
UINT32 = Uint(0, (1 << 32) - 1)
CORE = Uint(0, (1 << 16) - 1)
CORES = Uint(1, 1 << 16)
SIZE = Uint(0, (1 << 63) - 1)  # bytes
NANOSECONDS = Uint(0, (1 << 63) - 1)
SECONDS = Real(0, 1e10)

# The first element of an error; the client raises one class for each. Only "crashed" and "timeout"
# have `details`; signal is "" when a kernel returned a status or reached its timeout. A frame that
# is not msgpack-rpc ends the session; the last response then has id nil and an error of kind
# "protocol".
ERROR_KINDS = ("protocol", "refused", "crashed", "timeout", "memory")
ERROR = Row(
    (
        Word(ERROR_KINDS),
        Text(1024),
        Map(
            {"signal": Text(64), "kernel": Text(256), "layer": Text(512), "call": UINT32},
            without=dict.fromkeys(("signal", "kernel", "layer", "call")),
        ),
    )
)

HELLO = Row((UINT32, UINT32, Data(NONCE_BYTES)))

DESCRIPTION = Map(
    {
        "runtime": Text(64),  # version of the program
        "machine": Word(("aarch64", "arm", "x86_64")),
        "abi": UINT32,
        "features": Many(Text(64), 0, 256),
        "kernel": Text(128),
        "cores": CORES,
        "memory": SIZE,
        "page_size": Uint(1, 1 << 30),
        "boot": Text(64),  # the kernel's id of this boot; "" if unknown
        "cpus": Many(Map({"model": Text(64), "midr": UINT32}), 0, 1 << 12),
        "fast_cores": CORES,  # of the fastest kind that the program may use
        "slow_cores": Many(CORE, 0, 1 << 12),  # of the slowest kind; none if all are of one kind
        #                                        or the kernel does not say
        "allowed_cores": Many(CORE, 0, 1 << 12),  # that the program may use
        "box": Many(Text(32), 0, 16),  # the entries of BOX that are in force
    },
    without={"boot": "", "slow_cores": (), "allowed_cores": (), "box": None},
)

# `metadata` is the object's ".mlc" section as it stands (mlc_abi.h); an object whose section is
# larger than MAX_CHUNK is refused.
LOADED = Map(
    {"module": ID, "arena": Maybe(ID), "image_bytes": SIZE, "metadata": Data(0, MAX_CHUNK)}
)


NOTHING = Nil()
NOTHING_TOLD = Map({})


def echo(payload: object) -> Kind:
    """The answer to a ping: its payload."""
    match payload:
        case None:
            return NOTHING
        case int():
            return Uint(payload, payload)
    return Word((str(payload),))


def _calls(kernel: str | None, options: Mapping[str, Any]) -> tuple[int, int | None]:
    """How many calls run, as Many takes least and most. A kernel is one call."""
    if kernel is not None:
        return 1, None
    if "until" in options:
        return options["until"] - options.get("from", 0), None
    return 0, MAX_CALLS


def ran(kernel: str | None, options: Mapping[str, Any]) -> Kind:
    """The answer to `run`. nanoseconds: of each call, or with `total` of all together. turns: how
    often each call ran; absent if once each. spans, if asked for: call, thread, begin since the
    run's, duration. places, if the run stopped where asked: the offset of each of that call's
    operands, in the operand's memory.
    """
    if options.get("quiet"):
        return NOTHING_TOLD
    each = Many(NANOSECONDS, *((1,) if options.get("total") else _calls(kernel, options)))
    span = Row((Uint(0, MAX_CALLS), Uint(0, MAX_THREADS - 1), NANOSECONDS, NANOSECONDS))
    spans = Many(span, 0, MAX_SPANS if options.get("spans") else 0)
    places = Many(SIZE, 0, MAX_OPERANDS)
    return Map(
        {"nanoseconds": each, "turns": each, "spans": spans, "places": places},
        without={"turns": None, "spans": (), "places": None},
    )


def timed(kernel: str | None, options: Mapping[str, Any]) -> Kind:
    """The answer to `time`. Samples, each the mean of `number` runs. `before` and `after` have a
    row for every `each` samples: the values of `facts`, nil where the kernel does not say.

    A board without conditions gives samples and numbers only.
    """
    repeat, least = options["repeat"], options["number"]
    each = max(-(-repeat // MAX_ROWS), 1)
    rows = Many(Many(Maybe(SIZE), 0, MAX_FACTS), -(-repeat // each))
    calls = _calls(kernel, options)
    layered = options.get("layers", False) and calls != (0, None)
    return Map(
        {
            "samples": Many(SECONDS, repeat),  # of one run
            "number": Many(Uint(least, (1 << 32) - 1), repeat),
            "cores": Many(CORE, 0, 1 << 12),  # that the threads were pinned to
            "facts": Many(Text(64), 0, MAX_FACTS),  # names of a row's values
            "each": Uint(each, each),
            "before": rows,
            "after": rows,
            "layers": Many(Many(NANOSECONDS, *calls), repeat if layered else 0),  # of one run
            "layer_cost_s": Real(0, 1),  # added to each of those by timing it
        },
        without={"cores": (), "facts": (), "each": each, "before": (), "after": (), "layers": (),
                 "layer_cost_s": 0.0},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the method table.

    `params` is for the reader: msgpack types in order. answer(*params) is the kind of the answer to
    a request; the link checks it. `answered_by` is the process on the board that does the work; the
    supervisor answers while a kernel runs.
    """

    name: str
    params: str
    answer: Callable[..., Kind]
    answered_by: Literal["supervisor", "worker"]


def _nil(*params: object) -> Kind:
    return NOTHING


METHODS: tuple[Method, ...] = (
    Method("hello", "major, minor, nonce:bin32", lambda *_: HELLO, "supervisor"),
    # On TCP only. Refused elsewhere, and when repeated.
    Method("auth", "proof:bin32", lambda proof: Data(HASH_BYTES), "supervisor"),
    Method("describe", "", lambda: DESCRIPTION, "supervisor"),
    Method("ping", "payload:any", echo, "supervisor"),
    # From now on, milliseconds without a byte from the client end the session; 0: none does.
    Method("heartbeat", "milliseconds:uint", _nil, "supervisor"),
    # Tensors live in memory that outlives a worker's crash. offsets and sizes in bytes.
    Method("tensor.new", "dtype:str, shape:[uint]", lambda dtype, shape: ID, "supervisor"),
    Method("tensor.write", "tensor, offset, data:bin", _nil, "supervisor"),
    Method("tensor.read", "tensor, offset, size", lambda id, at, size: Data(size), "supervisor"),
    # kind: "zero", or "random": each element from the top bits of one output x of xorshift64* of
    # the seed (0 stands for 0x9e3779b97f4a7c15). Integers and bool are x's top bits; floats are
    # k / 2**n - 1, in [-1, 1), of its top n + 1 bits k, n = 23, 52, 10, 7 for float32, float64,
    # float16, bfloat16.
    Method("tensor.fill", "tensor, kind:str, seed:uint", _nil, "supervisor"),
    # -> [process, descriptor]: until the tensor is freed, a client on the board's own machine may
    # map its memory file, /proc/<process>/fd/<descriptor>.
    Method("tensor.descriptor", "tensor", lambda id: Row((ID, UINT32)), "supervisor"),
    Method("tensor.free", "tensor", _nil, "supervisor"),
    # A blob's name is the hash of its content. put appends at `offset`, which must be the size that
    # `has` gave; the last put checks the hash. Once the blob is complete, also by another session,
    # a put succeeds and its data is dropped. `has` (for a whole blob) and a put of no data (for a
    # part) read and hash the cache; pings overtake that.
    # -> [size, whether it is complete]
    Method("blob.has", "hash:bin32", lambda hash: Row((SIZE, Bool())), "supervisor"),
    # -> how many bytes are there now
    Method(
        "blob.put",
        "hash:bin32, total, offset, data:bin",
        lambda hash, total, at, data: Uint(at + len(data), total),  # all, where others sent it
        "supervisor",
    ),
    Method("blob.get", "hash:bin32, offset, size", lambda hash, at, size: Data(size), "supervisor"),
    # Refused while a module needs the blob. Freeing an absent blob is not an error.
    Method("blob.free", "hash:bin32", _nil, "supervisor"),
    # `weights` is the blob that the module's model names, or nil where there is none.
    Method("module.load", "object:bin32, weights:bin32|nil", lambda *_: LOADED, "worker"),
    Method("module.free", "module", _nil, "worker"),
    # Run once. kernel: its name, or nil for the module's model (then args are inputs followed by
    # outputs). Each arg is a tensor id. options: {timeout_ms:uint (0: none), mark:bool (tell
    # QEMU's counting plugin where each layer begins and ends), spans:bool (record when each thread
    # worked on each call, by the board's clock), quiet:bool (give no times),
    # total:bool (give one time for all calls),
    # stop:[call:uint, turn:uint] (of a model: end the run right after that iteration of that
    # call; iterations count from 0 over all loops around it), from:uint, until:uint (the model's
    # calls to run, `until` excluded; all by default), threads:uint (1 to
    # MAX_THREADS, which share each call's tasks; 1 by default, and always with marks),
    # cores:str ("fast", "slow", or numbers as "0-3" or "4,5": where the threads stay; "", the
    # default: the fast ones, or all if threads are more than those)}
    Method(
        "run",
        "module, kernel:str|nil, args:[tensor], options:map",
        lambda module, kernel, args, options: ran(kernel, options),
        "worker",
    ),
    # Time on the board. options: those of `run` except mark, quiet, total, spans and stop; and
    # number, repeat, min_repeat_ms, limit_zero_time_iterations, cooldown_interval_ms,
    # repeats_to_cooldown, cache_flush_bytes and layers:bool (also time each call; false by
    # default).
    # facts: core (the first thread's), and of that core clock_khz, clock_limit_khz
    # (allowed by the system), clock_most_khz (possible); zone0_mc to zone7_mc (temperatures,
    # thousandths of a degree Celsius, nil below 0), memory_kb and memory_most_kb (the worker's
    # resident memory, now and at most), power_uw (of the kernel's first sensor), load_percent (of a
    # core, in the last minute), throttled (a Raspberry Pi's get_throttled); and counters, whose
    # value for a sample is `after` less `before`: energy_uj (of a sensor, else the CPU's counter),
    # voluntary_switches, involuntary_switches, major_faults and cpu_us (of all threads), cycles,
    # instructions and cache_misses (outside the kernel).
    Method(
        "time",
        "module, kernel:str|nil, args:[tensor], options:map",
        lambda module, kernel, args, options: timed(kernel, options),
        "worker",
    ),
)
ANSWERS = {method.name: method.answer for method in METHODS}
