"""The cost of a candidate: it is loaded on a board, run, timed or counted, and compared with a
reference.

All candidates of a task get the same inputs. Outputs are overwritten before each, so that a kernel
that writes nothing does not pass for correct. After a failed candidate the inputs are made again,
since it may have written into them. A candidate that costs less than all before must also be
correct: its outputs are compared with numpy's for the same inputs or, where that takes too long,
with the default kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_rpc import (
    CounterError,
    Crashed,
    OutOfMemory,
    Refused,
    RemoteFunction,
    RemoteTensor,
    Timing,
)
from mlc_rpc import Timeout as RpcTimeout
from mlc_rpc.module import Run
from mlc_targets.cores import Speed

from ..driver.builder import KERNEL
from ..driver.deploy import WARM_BYTES
from ..ir import Block, walk
from ..ops import Attrs
from ..ops.nn import without_filling
from ..predict.model import layer_ms, work_of
from ..tuned import Measured, Objective
from .boards import Board, Incident
from .records import Task
from .reference import Reference, Values, packed_weights, values_of, written

RELATIVE, OF_LARGEST = 1e-4, 2e-5  # bounds of floats: times the element, times the largest one
HALF_RELATIVE, HALF_OF_LARGEST = 5e-3, 2e-3
RUN_SECONDS = 10.0  # for a run of a kernel, where the request says nothing
FAR_OFF = 3.0  # so many times the best: no need to know it exactly
NEAR = 1.03  # of the best: it may be a better one
# samples, and milliseconds that each takes at least
ROUGH, QUICK, CLOSE, CAREFUL = (1, 0), (3, 4), (5, 10), (7, 20)
ENOUGH = 1.1  # times the runs that fill a sample: a sample too short is wasted
SHORTEST = 1e-9  # seconds, where the clock saw none
LATE, LATEST = 10.0, 100.0  # so many times the best a run may take, at least and at most
LEAST_SECONDS = 1.0  # that a run may take: others may have the board's cores for a while
EMULATED_PER_SECOND = 1e8  # instructions, by a slow emulator
EMULATED_TIMES = 200.0  # what a core takes, by a slow emulator that simulates caches
DISTURBED = ("noisy", "migrated", "throttled")
MESSAGE = 300  # characters of a message
MOST_REPETITIONS = 3  # of a noisy measurement
COOL_SECONDS = (10.0, 30.0, 60.0)  # pauses of a board that is throttled
TASKS_KEPT = 2  # on a board: their tensors
TENSORS_KEPT = 64  # tasks whose tensors are remembered
EXPECTED_BYTES = 1 << 26  # of reference outputs, kept for each board
INDEX_TYPES = ("int32", "int64")  # zeros where nothing is said: they may be indices
INPUT_SEED, OUTPUT_SEED = 1, 77


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter of a kernel. values: of an input; None: by its type. packed: for packed weights,
    the attributes of their operator. half: the kernel computes in float16."""

    shape: tuple[int, ...]
    dtype: str
    output: bool
    values: Values | None = None
    packed: Attrs | None = None
    half: bool = False

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@lru_cache(TENSORS_KEPT)
def tensors_of(task: Task) -> tuple[Tensor, ...]:
    """The parameters of a task's kernel."""
    outputs, values, packed = written(task.func), values_of(task), packed_weights(task)
    used = {r.buffer for n in walk(task.func.body) if isinstance(n, Block) for r in n.reads}
    half = any(b.dtype == "float16" for b in used | outputs)
    return tuple(
        Tensor(
            tuple(int(n) for n in b.shape),  # type: ignore[arg-type]
            b.dtype, b in outputs, values.get(b), packed.get(b), half,
        )
        for b in task.func.buffers
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """One candidate to measure. object: the kernel. reference: computes its outputs, or is a kernel
    that does (None: nothing is compared). best: the task's lowest cost so far. careful: measure
    long, however slow the kernel is. repetitions: of a noisy measurement, at most. cores: as a
    RemoteFunction takes them. speed: of the core that times are predicted for."""

    task: str
    workload: str
    object: bytes
    reference: Reference | bytes | None
    tensors: tuple[Tensor, ...]
    objective: Objective
    best: float
    careful: bool = False
    repetitions: int = MOST_REPETITIONS
    seconds: float = RUN_SECONDS
    cool: tuple[float, ...] = COOL_SECONDS
    cores: str = ""
    speed: Speed | None = None


def measure(board: Board, request: Request) -> Measured:
    """A job of a BoardPool. Raises the errors of a lost board: Lost, Unreachable, ProtocolError,
    and Timeout where the board itself does not answer."""
    used = request.workload in board.state.get("tensors", {})
    found = _compared(board, request)
    if found.verdict != "ok":
        _forget_tensors(board, request.workload)
    if found.verdict == "wrong" and used:  # an earlier candidate may have changed the inputs
        return measure(board, request)
    return found


def _compared(board: Board, request: Request) -> Measured:
    """The cost of a candidate, or what is wrong with it."""
    try:
        found, tensors = _measured(board, request, request.object)
        if found.cost(request.objective) >= request.best or request.reference is None:
            return found
        got = _outputs(request, tensors)
        expected = _expected(board, request)
    except Crashed as error:
        return Measured("crash", message=_words(error.what))
    except RpcTimeout as error:
        if not error.details:  # the client's own: the board did not answer
            raise
        return Measured("timeout", message=_words(error.what))
    except (Refused, OutOfMemory, CounterError) as error:
        return Measured("refused", message=_words(str(error)))
    half = any(tensor.half for tensor in request.tensors)
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        if (wrong := wrong_elements(a, b, half)) > 0:
            message = f"output {number}: {wrong} of {a.size} elements are wrong"
            return Measured("wrong", found.seconds, found.instructions, found.timing, message)
    return found


def wrong_elements(got: NDArray[Any], expected: NDArray[Any], half: bool = False) -> int:
    """How many elements of a kernel's output are wrong. Integers must be exact, floats within
    bounds; float16 values, and floats computed in float16, have wider bounds."""
    if got.dtype.kind != "f":
        return int((got != expected).sum())
    half |= got.dtype == np.float16
    relative, of_largest = (HALF_RELATIVE, HALF_OF_LARGEST) if half else (RELATIVE, OF_LARGEST)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    largest = float(np.abs(b[finite]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= relative * np.abs(b) + of_largest * largest
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return int((~(same | (near & finite))).sum())


def _words(text: str) -> str:
    return text[:MESSAGE]


def _measured(
    board: Board, request: Request, code: bytes
) -> tuple[Measured, Sequence[RemoteTensor]]:
    """The cost of an object, and the tensors it ran with."""
    tensors = _tensors(board, request)
    for tensor, kind in zip(tensors, request.tensors, strict=True):
        if kind.output:
            tensor.fill("random", OUTPUT_SEED)
    with _loaded(board, code) as function:
        if request.objective == "seconds":
            return timed(board, request, function, tensors), tensors
        run = function.profile(*tensors, cores=request.cores, timeout=run_limit(request))
        if request.objective == "predicted":
            return predicted(request, function, tensors, run), tensors
    counted = run.counts[0].total if run.counts else None
    return Measured("ok", (), counted, "emulated"), tensors


def predicted(
    request: Request, function: RemoteFunction, tensors: Sequence[RemoteTensor], run: Run
) -> Measured:
    """The predicted time on the candidate's core, by the counts of its run. If caches could hold
    its tensors it runs again, since in a model the layer before has just written them."""
    assert request.speed is not None
    (counts,) = run.counts or (None,)
    if counts is None or not counts.misses:
        return Measured("refused", message="the board simulates no caches")
    misses = counts.misses
    if sum(tensor.nbytes for tensor in request.tensors) <= WARM_BYTES:
        again = function.profile(*tensors, cores=request.cores, timeout=run_limit(request)).counts
        assert again is not None
        misses = again[0].misses
    ms = layer_ms(work_of(counts.by_class, misses, request.speed), request.speed)
    return Measured("ok", (ms / 1e3,), counts.total, "predicted")


@contextmanager
def _loaded(board: Board, code: bytes) -> Iterator[RemoteFunction]:
    """The object's kernel; nothing of it stays on the board."""
    blob = board.session.put(code)
    try:
        module = board.session.load(code)
        try:
            yield module[KERNEL]
        finally:
            module.close()
    finally:
        board.session.forget(blob)


def timed(
    board: Board, request: Request, function: RemoteFunction, tensors: Sequence[RemoteTensor]
) -> Measured:
    """Times a kernel roughly at first, and exactly if it may be the best, or if `careful`."""
    limit = run_limit(request)
    known = inf  # seconds of a run

    def sampled(samples: int, milliseconds: int) -> Timing:
        nonlocal known
        number = max(ceil(ENOUGH * milliseconds / 1e3 / known), 1)
        evaluate = function.time_evaluator(
            number, samples, milliseconds, cores=request.cores, timeout=limit * (samples + 1)
        )
        timing = evaluate(*tensors)
        known = max(timing.median, SHORTEST)
        return timing

    rough = sampled(*ROUGH)
    if request.careful:
        samples, verdict = settled(lambda: sampled(*CAREFUL), board, request)
        return Measured("ok", samples, None, verdict)
    if rough.median > FAR_OFF * request.best:
        return Measured("ok", rough.samples, None, rough.verdict)
    samples, verdict = settled(lambda: sampled(*QUICK), board, replace(request, repetitions=1))
    if min(samples) <= NEAR * request.best:
        samples, verdict = settled(lambda: sampled(*CLOSE), board, request)
    return Measured("ok", samples, None, verdict)


def run_limit(request: Request) -> float:
    """Seconds that one run may take: the request's limit, or less where the best takes far less. It
    is still many times the best's, so a kernel on a busy board does not count as endless."""
    best = request.best
    match request.objective:
        case "instructions":
            best /= EMULATED_PER_SECOND
        case "predicted":
            best *= EMULATED_TIMES
    if not isfinite(best):
        return request.seconds
    return max(min(request.seconds, max(LATEST * best, LEAST_SECONDS)), LATE * best)


def settled(
    timed: Callable[[], Timing],
    board: Board,
    request: Request,
    sleep: Any = time.sleep,
) -> tuple[tuple[float, ...], str]:
    """Trustworthy samples, and the verdict on them. A throttled board pauses and measures again. A
    noisy measurement is repeated; if it stays noisy, all its samples count."""
    pauses = list(request.cool)
    disturbed: tuple[float, ...] = ()
    for _ in range(request.repetitions + len(pauses)):
        timing = timed()
        verdict = timing.verdict
        if verdict == "throttled" and pauses:
            seconds = pauses.pop(0)
            board.report(Incident(board.url, f"throttled: {seconds:g} s to cool", request.task))
            sleep(seconds)
            continue
        if verdict not in DISTURBED:
            return timing.samples, verdict
        disturbed += timing.samples
        if len(disturbed) >= request.repetitions * len(timing.samples):
            break
    return disturbed, verdict


def _tensors(board: Board, request: Request) -> Sequence[RemoteTensor]:
    """The task's tensors on the board; those of the latest tasks are kept."""
    kept: dict[str, tuple[RemoteTensor, ...]] = board.state.setdefault("tensors", {})
    if request.workload in kept:
        kept[request.workload] = kept.pop(request.workload)  # the latest comes last
        return kept[request.workload]
    while len(kept) >= TASKS_KEPT:
        _forget_tensors(board, next(iter(kept)))
    made = []
    for number, kind in enumerate(request.tensors):
        tensor = board.session.empty(kind.shape, kind.dtype)
        if kind.values is not None:
            tensor.write(kind.values.draw(kind.shape, kind.dtype, INPUT_SEED + number))
        elif not kind.output and kind.dtype not in INDEX_TYPES:
            tensor.fill("random", INPUT_SEED + number)
            if kind.dtype == "int8":  # weights are symmetric, and kernels may rely on that
                tensor.write(np.maximum(tensor.numpy(), -127))
        if kind.packed is not None:
            tensor.write(without_filling(tensor.numpy(), kind.packed))
        made.append(tensor)
    kept[request.workload] = tuple(made)
    return kept[request.workload]


def _forget_tensors(board: Board, workload: str) -> None:
    for tensor in board.state.get("tensors", {}).pop(workload, ()):
        tensor.close()


def _outputs(request: Request, tensors: Sequence[RemoteTensor]) -> list[NDArray[Any]]:
    pairs = zip(tensors, request.tensors, strict=True)
    return [tensor.numpy() for tensor, kind in pairs if kind.output]


def _expected(board: Board, request: Request) -> list[NDArray[Any]]:
    """The reference outputs; those of the latest tasks are kept."""
    kept: dict[str, list[NDArray[Any]]] = board.state.setdefault("expected", {})
    if request.workload not in kept:
        while sum(a.nbytes for arrays in kept.values() for a in arrays) > EXPECTED_BYTES:
            del kept[next(iter(kept))]
        _forget_tensors(board, request.workload)  # a candidate may have written into them
        tensors = _tensors(board, request)
        match request.reference:
            case bytes(code):
                with _loaded(board, code) as function:
                    function(*tensors, timeout=request.seconds)
                kept[request.workload] = _outputs(request, tensors)
            case reference:
                assert reference is not None
                pairs = zip(tensors, request.tensors, strict=True)
                inputs = [tensor.numpy() for tensor, kind in pairs if not kind.output]
                kept[request.workload] = reference(inputs)
    return kept[request.workload]
