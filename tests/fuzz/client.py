"""The client against lying boards: sessions in which answers are changed.

    python -m tests.fuzz.client [--sessions 20000 | --minutes 5] [--seed N] [--only SESSION]

A session with the runtime on this machine is recorded, and then held again and again with a board
in Python that answers from the record, and lies (lies.py). Held throughout: what goes wrong is one
of the documented errors, whose text is printable; what a session ends with is the truth, but for
what the board alone can know and has lied about (docs/explanation/fuzzing.md); and no session takes
more than 64 MB of memory, or waits for what cannot come. Exit status 0: all of that held.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import random
import resource
import secrets
import sys
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import mlc_deploy as mlc
import mlc_rpc.session
import mlc_rpc.tcp
from mlc_deploy.board.connect import target_of
from mlc_deploy.board.runtime_files import runtime_file
from mlc_deploy.cli.errors import message
from mlc_deploy.cli.report import show
from mlc_deploy.errors import MlcError
from mlc_deploy.graph import BlockBuilder
from mlc_rpc import Crashed, Refused, RpcError, Session
from mlc_rpc.connect import open_transport
from mlc_rpc.link import Link
from mlc_rpc.transport import TcpUrl, Transport
from mlc_rpc.wire import MAX_CHUNK
from mlc_targets import TargetError
from tests.fuzz.liar import (
    BannerLiar,
    Hung,
    Liar,
    LyingSocket,
    LyingTransport,
    Recorder,
    Script,
    TcpLiar,
)
from tests.runtime.board import WEIGHTS, model, module_of

DOCUMENTED = (RpcError, MlcError, TargetError)
MOST_MEMORY = 64 << 20  # tensors included, which are small
TRACED = 10  # in one session of so many, all that is allocated counts, touched or not
X = np.arange(64, dtype=np.float32)
LARGE = np.random.default_rng(0).integers(0, 255, MAX_CHUNK + 1000, np.uint8)
BLOB = np.random.default_rng(1).bytes(3000)


@dataclass
class Found:
    """What a session ended with. `sure` is so whatever the board says; `told` is the board's word,
    by the methods that it answered."""

    sure: dict[str, Any] = field(default_factory=dict)
    told: dict[str, list[Any]] = field(default_factory=dict)

    def say(self, method: str, *values: Any) -> None:
        self.told.setdefault(method, []).extend(values)


@cache
def small_model() -> mlc.CompiledModel:
    """y = relu(a + b), int32 z = c + c."""
    builder = BlockBuilder("main")
    a, b = (builder.param(name, (2, 3), "float32") for name in "ab")
    c = builder.param("c", (4,), "int32")
    y = builder.emit("relu", builder.emit("add", a, b))
    return mlc.compile(builder.finish([y, builder.emit("add", c, c)], ["y", "z"]), "host")


INPUTS = {"a": np.ones((2, 3), np.float32), "b": np.ones((2, 3), np.float32),
          "c": np.arange(4, dtype=np.int32)}  # fmt: skip
EXPECTED = {"y": np.full((2, 3), 2, np.float32), "z": 2 * np.arange(4, dtype=np.int32)}


def use(session: Session) -> Found:
    """Every method that the client calls, by way of what calls it."""
    found = Found()
    sure = found.sure
    device = session.device
    found.say("describe", device)
    json.dumps({"features": sorted(device.features), "memory": device.memory, "of": repr(session)})
    session.ping()
    tensor = session.tensor(LARGE)
    back = tensor.numpy()
    sure["tensor"] = back.shape, back.dtype.name, tensor.nbytes
    found.say("tensor.read", back.tobytes())
    filled = session.random((3, 5), "float32", seed=7)
    sure["random"] = filled.numpy().shape, filled.dtype
    found.say("tensor.read", filled.numpy().tobytes())
    filled.fill("zero")
    mapped = filled.mapped()
    sure["mapped"] = mapped is None or mapped.size == filled.nbytes
    filled.write_bytes(4, np.arange(8, dtype=np.uint8))
    filled.close()
    sure["blob"] = name = session.put(BLOB)
    sure["content"] = session.get(name)
    session.has(name)
    session.forget(name)
    module = session.load(model(), WEIGHTS)
    sure["metadata"], sure["arena"] = module.metadata, module.arena and module.arena.shape
    found.say("module.load", module.image_bytes)
    a, b = session.tensor(X), session.empty((64,))
    module["double64"](a, b)
    outputs = module.run({"x": X.reshape(1, 64)})
    sure["outputs"] = {n: (array.shape, array.dtype.name) for n, array in outputs.items()}
    found.say("tensor.read", b.numpy().tobytes(), *(o.tobytes() for o in outputs.values()))
    run = module.profile({"x": X.reshape(1, 64)}, until=2).run
    sure["calls"] = len(run.nanoseconds), run.counts
    found.say("run", run.nanoseconds)
    stopped = module.stop_after({"x": X.reshape(1, 64)}, module.model.calls[1].layer)
    sure["stopped"] = {name: (a.shape, a.dtype.name) for name, a in stopped.results.items()}
    found.say("run tensor.read", *(array.tobytes() for array in stopped.results.values()))
    timing = module.time({"x": X.reshape(1, 64)}, number=2, repeat=3, layers=True)
    sure["samples"] = len(timing.samples), len(timing.number), [len(row) for row in timing.layers]
    assert all(0 <= each < math.inf for each in (*timing.samples, *sum(timing.layers, ())))
    assert all(n >= 2 for n in timing.number)
    json.dumps(timing.record(), allow_nan=False)
    found.say("time", timing.samples, timing.layers, str(timing))
    module.close()
    wild = session.load(module_of("wild"))
    scratch = session.empty((64,), "uint8")
    try:
        wild["wild"](scratch)
    except Crashed as error:
        found.say("run", error.signal, error.call, error.what)
    else:
        found.say("run", "no crash")
    try:
        session.load(b"no object")
    except Refused as error:
        found.say("blob.has blob.put module.load", error.what)  # whichever refuses
    return found


def deploy(session: Session) -> Found:
    """A model through what users call, to its record and the table."""
    target_of(session.device)
    done = mlc.deploy(small_model(), session, INPUTS, expect=EXPECTED, threads=1)
    record = done.record("small")
    text = io.StringIO()
    show(record, text, verbose=True)
    assert all(line.isprintable() for line in text.getvalue().split("\n")), text.getvalue()
    json.dumps(record, allow_nan=False)
    found = Found()
    found.sure["outputs"] = [(o["name"], o["shape"], o["dtype"]) for o in record["outputs"]]
    found.sure["layers"] = [(each["name"], each["kernel"]) for each in record["layers"]]
    found.say("tensor.read", record["ok"], *(o.tobytes() for o in done.outputs.values()))
    found.say("describe", record["board"] | {"url": ""}, record["runtime_version"])
    found.say("run time", record["latency"]["samples"])
    return found


WORK: dict[str, Callable[[Session], Found]] = {"use": use, "deploy": deploy}


@dataclass
class Recorded:
    """A true session: what the board answered, how many requests there were, and how it ended."""

    script: Script
    requests: int
    truth: Found


@cache
def recorded(work: str) -> Recorded:
    script = Script()
    transport = Recorder(open_transport("local://", runtime_file), script)
    with Session(transport) as session:
        truth = WORK[work](session)
    return Recorded(script, script.count, truth)


class Broken(Exception):
    """Something that must hold did not."""


class WatchedLink(Link):
    """Tells the liar of the link, so that it knows when the client waits for nothing."""

    liar: Liar | None = None

    def __init__(self, transport: Transport, timeout: float) -> None:
        if self.liar:
            self.liar.link = self
        super().__init__(transport, timeout)


def open_lying(liar: Liar, key: bytes) -> Session:
    WatchedLink.liar = liar
    if isinstance(liar, TcpLiar):
        sock = LyingSocket(liar)
        setattr(mlc_rpc.tcp, "_connect", lambda *_: sock)  # noqa: B010
        return Session(mlc_rpc.tcp.open_tcp(TcpUrl("liar", 1), key, 30.0))
    return Session(LyingTransport(liar, os.getpid()))


def hold(number: int, seed: int, lying: bool = True) -> str:
    """One session, and how it ended. Raises Broken."""
    chance = random.Random(f"{seed} {number}")
    work = "deploy" if number % 8 == 7 else "use"
    known = recorded(work)
    count = chance.choice((1, 1, 1, 2, 5)) if lying else 0
    plan = frozenset(chance.sample(range(known.requests), count))
    key = secrets.token_bytes(32)
    way = chance.choice(("stream",) * 6 + ("banner", "key", "key", "between", "greeting"))
    if way == "stream" or not lying:
        liar: Liar = Liar(known.script, chance, plan)
    elif way == "banner":
        liar = BannerLiar(known.script, chance, frozenset())
    else:
        liar = TcpLiar(known.script, chance, plan, key, way)
    try:
        with open_lying(liar, key) as session:
            found = WORK[work](session)
    except DOCUMENTED as error:
        if not lying:
            raise Broken(f"an honest board fails: {error}") from error
        for line in message(error).split("\n"):
            if not line.isprintable() or "evil" in line.partition("  try: ")[2][:6]:
                raise Broken(f"{way}: not shown as text: {line!r}") from error
        return type(error).__name__
    except Hung as error:
        raise Broken(f"{way}: it hangs") from error
    except Exception as error:
        raise Broken(f"{way}: {''.join(traceback.format_exception(error))}") from error
    if way == "between" and lying and liar.received > min(plan):
        raise Broken("bytes were changed in between, and nobody noticed")
    compare(known.truth, found, set(liar.told), way)
    return "the truth" if found == known.truth else "the board's word"


def compare(truth: Found, found: Found, lied: set[str], way: str) -> None:
    for name, right in truth.sure.items():
        if found.sure[name] != right:
            raise Broken(f"{way}: {name} is {found.sure[name]!r:.300}, not {right!r:.300}")
    for methods, right in truth.told.items():
        if found.told[methods] != right and not lied & set(methods.split()):
            raise Broken(f"{way}: {methods} gave {found.told[methods]!r:.300}, not {right!r:.300}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, metavar="SESSION", help="this one alone")
    options = parser.parse_args()
    print(f"client: seed {options.seed}", flush=True)
    numbers = None if options.only is None else [options.only]
    most = options.sessions or (10**9 if options.minutes else 20_000)
    ended = fuzz(most, options.seed, options.minutes, numbers)
    total = sum(ended.values())
    print(
        f"client: {total} sessions ended with "
        + ", ".join(f"{name} {count}" for name, count in ended.most_common())
    )


def fuzz(
    sessions: int, seed: int, minutes: float | None = None, numbers: list[int] | None = None
) -> Counter[str]:
    """How sessions ended, and how often. Raises SystemExit with what did not hold, and where."""
    setattr(mlc_rpc.session, "Link", WatchedLink)  # noqa: B010
    ended = Counter[str]()
    end = time.monotonic() + (minutes or 0) * 60
    for work in (0, 7):
        hold(work, seed, lying=False)
    for number in numbers or range(sessions):
        if minutes is not None and time.monotonic() > end:
            break
        traced, before = number % TRACED == 0, most_resident()
        try:
            if traced:
                tracemalloc.start()
            ended[hold(number, seed)] += 1
            taken = most_resident() - before
            if traced:
                taken = max(taken, tracemalloc.get_traced_memory()[1])
            if taken > MOST_MEMORY:
                raise Broken(f"it took {taken >> 20} MB")
        except Broken as error:
            sys.exit(f"client: session {number} of seed {seed}: {error}")
        finally:
            if traced:
                tracemalloc.stop()
    return ended


def most_resident() -> int:
    """The most bytes of this process that were in memory at a time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    main()
