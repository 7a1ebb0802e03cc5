"""The wire between the client and the program on the board, described once.

A stream begins with the board's 16-byte PREAMBLE (the client discards up to 64 KiB that a login
shell printed before it). Then both sides send msgpack-rpc messages as published:

    request   [0, id, method, params]      client -> board; id is a uint32, never reused while open
    response  [1, id, error, result]       board -> client; error is nil, or [kind, text, details]
    notify    [2, method, params]          either way; unknown methods are ignored

The client reads a response as the kind that the request's method gives (METHODS, mlc_rpc/kinds.py)
and as nothing else; another one ends the session with a ProtocolError.

One message is at most MAX_MESSAGE bytes and MAX_DEPTH containers deep; tensors and blobs go in
chunks of at most MAX_CHUNK bytes. Responses come in any order: `ping`, and everything else the
supervisor answers itself, overtakes a running kernel. One `run` can be asked for while another one
of the same module is under way: it begins when that has ended. Everything else that needs the
worker is refused meanwhile, as busy.

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
This proves who sent what, and in which order; it hides nothing (docs/explanation/threat_model.md).

Heartbeat: after `heartbeat`, a client that sends nothing for so long is dead, and its session ends.
A client that wants to know whether the board lives calls `ping`.

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
MAX_SPANS = 1 << 13  # of a run: what threads do later is not told
MAX_ROWS = 500  # of conditions; where there are more samples, a row is for several
MAX_LAYER_TIMES = 1 << 14  # samples times calls, where `time` times each call
# What a board's system can take from the process that runs kernels; old ones and emulators cannot
# do all of it. syscalls: all but those that computing takes. files: Landlock, no path can be used.
# tcp, signals: nor a port, nor a signal to others. processes: a pid namespace, in which others have
# no name and which ends as a whole. user: it is not the one who started the program. memory: nobody
# writes to weights, and tensors keep their size (seals).
BOX = ("syscalls", "files", "tcp", "signals", "processes", "user", "memory")
MAX_CALLS = 1 << 19  # that an answer has room for
MAX_FACTS = 64


def version_refusal(major: int, minor: int) -> tuple[str, str] | None:
    """What is wrong with the board's version and what to do about it; None for nothing."""
    if major == VERSION[0]:
        return None
    return (
        f"the board's program speaks version {major}.{minor} of the wire, "
        f"this client version {VERSION[0]}.{VERSION[1]}",
        SAME_RELEASE,
    )


# ---- What answers are ----

ID = Uint(1, (1 << 32) - 1)  # of a tensor or a module
UINT32 = Uint(0, (1 << 32) - 1)
CORE = Uint(0, (1 << 16) - 1)
CORES = Uint(1, 1 << 16)
SIZE = Uint(0, (1 << 63) - 1)  # bytes
NANOSECONDS = Uint(0, (1 << 63) - 1)
SECONDS = Real(0, 1e10)

# The first element of an error; the client raises one class for each. `details`, of "crashed" and
# "timeout" only: signal is "" when a kernel returned a status or was ended for its timeout. A frame
# that is not msgpack-rpc ends the session: the last response then has id nil and an error of kind
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
        "boot": Text(64),  # the kernel's id of this boot; "" where it does not say
        "cpus": Many(Map({"model": Text(64), "midr": UINT32}), 0, 1 << 12),
        "fast_cores": CORES,  # of the fastest kind, and left to the program: so many threads
        "slow_cores": Many(CORE, 0, 1 << 12),  # of the slowest kind; none where all are of one
        #                                        kind, or the kernel does not say
        "allowed_cores": Many(CORE, 0, 1 << 12),  # that the program may use
        "box": Many(Text(32), 0, 16),  # of BOX, what holds for kernels there
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
    """The payload of a ping, back again."""
    match payload:
        case None:
            return NOTHING
        case int():
            return Uint(payload, payload)
    return Word((str(payload),))


def _calls(kernel: str | None, options: Mapping[str, Any]) -> tuple[int, int | None]:
    """How many calls run, at least and at most: one of a kernel; of a model as many as asked."""
    if kernel is not None:
        return 1, None
    if "until" in options:
        return options["until"] - options.get("from", 0), None
    return 0, MAX_CALLS


def ran(kernel: str | None, options: Mapping[str, Any]) -> Kind:
    """Nanoseconds of each call that ran, or of all together where the total was asked for; how
    often each did, where that is not once; and where they were asked for, when threads were at
    work: call, thread, begin since the run's, duration.
    `places`, of a run that stopped where it was to: offsets of that call's operands, each in its
    own memory.
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
    """Samples, each the mean of `number` runs, and what was so on the board around every `each` of
    them: a row of the facts' values, nil where the kernel does not tell, before and after.

    A board without conditions says samples and numbers only.
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
            "facts": Many(Text(64), 0, MAX_FACTS),  # names of what is in a row
            "each": Uint(each, each),
            "before": rows,
            "after": rows,
            "layers": Many(Many(NANOSECONDS, *calls), repeat if layered else 0),  # of one run
            "layer_cost_s": Real(0, 1),  # that timing a call has added to each of those
        },
        without={"cores": (), "facts": (), "each": each, "before": (), "after": (), "layers": (),
                 "layer_cost_s": 0.0},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the method table.

    `params` is for the reader: msgpack types in order. answer(*params) is what the answer to a
    request must be, which the link checks where it arrives. `answered_by` says which process on
    the board does the work; the supervisor's methods are answered while a kernel runs.
    """

    name: str
    params: str
    answer: Callable[..., Kind]
    answered_by: Literal["supervisor", "worker"]


def _nil(*params: object) -> Kind:
    return NOTHING


METHODS: tuple[Method, ...] = (
    Method("hello", "major, minor, nonce:bin32", lambda *_: HELLO, "supervisor"),
    # On TCP only; elsewhere, and a second time, it is refused.
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
    # -> [process, descriptor], where a client on the board's own machine may map it:
    # /proc/<process>/fd/<descriptor>, a memory file of the tensor's bytes, until it is freed.
    Method("tensor.descriptor", "tensor", lambda id: Row((ID, UINT32)), "supervisor"),
    Method("tensor.free", "tensor", _nil, "supervisor"),
    # Blobs are named by the hash of their content; put appends at `offset`, which must be what
    # `has` said is there already, and the last put checks the hash. Once the blob is complete, by
    # another session too, what is put is not needed, and succeeds. What a cache has is read and
    # hashed by `has` (a whole blob) and by a put of no data (a part), and pings overtake that.
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
    # Refused while a module needs the blob; freeing one that is not there is no error.
    Method("blob.free", "hash:bin32", _nil, "supervisor"),
    # `weights` is the blob that the module's model names, or nil where there is none.
    Method("module.load", "object:bin32, weights:bin32|nil", lambda *_: LOADED, "worker"),
    Method("module.free", "module", _nil, "worker"),
    # Run once. kernel: its name, or nil for the module's model (then args are inputs followed by
    # outputs). Each arg is a tensor id. options: {timeout_ms:uint (0: none), mark:bool (tell
    # QEMU's counting plugin where each layer begins and ends), spans:bool (tell when each thread
    # was at work on each call, by the board's clock), quiet:bool (tell nothing of each call),
    # total:bool (tell one time, of all calls together),
    # stop:[call:uint, turn:uint] (of a model: end the run right after that turn of that call, which
    # count from 0 over all loops around it), from:uint, until:uint (the model's
    # calls from the one up to, not including, the other; all by default), threads:uint (1 to
    # MAX_THREADS, which share each call's tasks; 1 by default, and where there are marks),
    # cores:str ("fast", "slow", or numbers as "0-3" or "4,5": where the threads stay; "", the
    # default, is on the fast ones while there are as many, and then on all)}
    Method(
        "run",
        "module, kernel:str|nil, args:[tensor], options:map",
        lambda module, kernel, args, options: ran(kernel, options),
        "worker",
    ),
    # Time on the board. options: those of `run` but mark, quiet, total, spans, stop, and number,
    # repeat, min_repeat_ms, limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown,
    # cache_flush_bytes and layers:bool (false by default: true times each call by itself too).
    # facts: core (that the first thread is
    # on), clock_khz, clock_limit_khz (that the system allows), clock_most_khz (that the core could)
    # of that core; zone0_mc to zone7_mc (temperatures, thousandths of a degree Celsius, nil below
    # 0), memory_kb and memory_most_kb (that the worker has in memory, and most had), power_uw (of
    # the first sensor that the kernel shows), load_percent (of a core, in the last minute),
    # throttled (a Raspberry Pi's word); and counts, by which the sample is `after` less `before`:
    # energy_uj (of a sensor, or else of the CPU's counter), voluntary_switches,
    # involuntary_switches, major_faults and cpu_us (of all threads), cycles, instructions and
    # cache_misses (outside the kernel).
    Method(
        "time",
        "module, kernel:str|nil, args:[tensor], options:map",
        lambda module, kernel, args, options: timed(kernel, options),
        "worker",
    ),
)
ANSWERS = {method.name: method.answer for method in METHODS}
