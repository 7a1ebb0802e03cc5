"""`deploy` sends a compiled model to a board, runs it, checks it against the reference, times it.

    model = mlc.compile("model.onnx", "aarch64")
    with mlc.connect("ssh://pi@raspberrypi.local") as board:
        done = mlc.deploy(model, board, {"input": x})
    done.ok, done.outputs["y"], done.record()

On an emulated board one run is checked and counted; the figure to quote is executed instructions.
On other boards a first run is checked, then the board times more runs.

The result is a Deployment (deployment.py).
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from mlc_rpc.extents import fits, results_of, stored
from mlc_rpc.module import Run, Span
from mlc_rpc.recover import persist
from mlc_rpc.timing import Timing
from mlc_rpc.wire import MAX_LAYER_TIMES, MAX_THREADS
from mlc_targets import Target
from mlc_targets.object_format import Param

from ..artifact import SavedModel
from ..errors import DeployError, InputError
from .compare import NO_SLACK, Comparison, Slack, compare
from .deployment import (
    Array,
    Deployable,
    Deployment,
    Layer,
    Predictions,
    arena_bytes,
    cpu_model,
    described_model,
    fixed_shape,
    host_calls_of,
    layers_of,
)
from .inputs import draw

if TYPE_CHECKING:
    from mlc_rpc import RemoteFunction, RemoteTensor, Session
    from mlc_rpc.session import Device

    from ..predict.calibration import Calibration


Stage = Callable[[str], AbstractContextManager[object]]

RUN_SECONDS = 600.0
TIMING_SECONDS = 2.0  # for all samples together, and as long again for the layers' profiles
SAMPLES = (3, 20)  # at least, at most
WARM_BYTES = 8 << 20  # twice the largest simulated cache: a larger model leaves nothing in it
SAMPLE_MS = 20  # faster runs are repeated within a sample


@runtime_checkable
class Levelled(Protocol):
    """A model with programs for several CPU levels."""

    def fitting(self, machine: str, features: frozenset[str]) -> Deployable: ...


def deploy(
    model: Deployable | Levelled,
    board: Session,
    inputs: Mapping[str, Array] | None = None,
    *,
    expect: Mapping[str, Array] | None = None,
    labels: Array | None = None,
    threads: int | None = None,
    cores: str = "",
    timeout: float = RUN_SECONDS,
    spans: bool = False,
    own: Calibration | None = None,
    stage: Stage = nullcontext,
) -> Deployment:
    """Sends the model, runs it, compares its outputs with the reference, and times it.

    Missing inputs are random, from a fixed seed. `expect` replaces the reference of the outputs
    that it names; a saved model has no other reference, so its other outputs are not compared. If
    the model has several CPU levels, the best one for this board runs. `labels` are compared with
    the argmax along an output's last axis. `cores`: "fast" (the default), "slow", or numbers such
    as "0-3" or "4,5". `threads`: by default one for each of these cores; on an emulated board one,
    since several are not counted. `timeout`: seconds for one run. `spans`: record when each thread
    worked on each layer, in one run. `own`: the calibration of the board that an emulated one
    stands for. stage(name) is entered around each step. A lost board is waited for, then everything
    begins anew (mlc_rpc.persist); `interruptions` says so.

    Wrong outputs raise nothing: `ok` is False. Raises DeployError, InputError, RpcError.
    """
    if isinstance(model, Levelled):
        model = model.fitting(board.device.machine, board.device.features)
    refuse_unfit(model.target, board.board, board.device)
    described = described_model(model)
    inputs_of, outputs_of = described.arguments | described.states, described.results
    given = fitting("input", inputs or {}, inputs_of)
    expected = fitting("output", expect or {}, outputs_of)
    every = every_input(model, given)
    asked = set(outputs_of) - set(expected)
    if asked and not isinstance(model, SavedModel):
        with stage("reference"):
            computed = model.evaluate(every)
        expected |= {name: right for name, right in computed.items() if name in asked}
    refuse_cores(cores, board.board, board.device)
    threads = threads or (1 if board.emulated else thread_count(board, cores))
    measured, interruptions = persist(
        board,
        lambda: _measure(model, board, every, threads, cores, timeout, spans, stage),
        waiting=lambda: stage("reconnect"),
    )
    outputs = measured.outputs

    def checked(name: str, slack: Slack = NO_SLACK) -> Comparison:
        return compare(outputs[name], expected[name], judged_in, slack)

    judged_in = model.precision if isinstance(model, SavedModel) else model.judged_in
    checks = {name: checked(name) for name in outputs if name in expected}
    if not isinstance(model, SavedModel) and (asked or judged_in == "float16"):
        slack: dict[str, Slack] = {}
        ways = (partial(model.slack, every, expected), partial(model.steepness, every))
        for way in ways:
            if all(c.ok for c in checks.values()):
                break
            for name, more in way().items():
                slack[name] = slack.get(name, NO_SLACK) | more
            checks = {
                n: c if c.ok else checked(n, slack.get(n, NO_SLACK)) for n, c in checks.items()
            }
    sources = {"evaluate" if name in asked else "given" for name in expected}
    return Deployment(
        model=model,
        url=board.board,
        device=board.device,
        emulated=board.emulated,
        inputs=every,
        drawn=frozenset(every) - frozenset(given),
        outputs=outputs,
        checks=checks,
        reference=", ".join(sorted(sources)) or None,
        predictions=None if labels is None else predict(outputs, labels),
        layers=_measured(layers_of(model), measured.runs),
        timing=measured.timing,
        threads=threads,
        upload_s=measured.upload_s,
        upload_bytes=measured.upload_bytes,
        first_s=measured.first_s,
        interruptions=interruptions,
        spans=measured.spans,
        own=own,
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The board's results and times; `runs` are profiles."""

    outputs: Mapping[str, Array]
    runs: Sequence[Run]
    timing: Timing
    upload_s: float
    upload_bytes: int
    first_s: float
    spans: tuple[Span, ...]


def _measure(
    model: Deployable,
    board: Session,
    inputs: Mapping[str, Array],
    threads: int,
    cores: str,
    timeout: float,
    spans: bool,
    stage: Stage,
) -> _Attempt:
    """Uploads the model, runs it and profiles it; holds nothing on the board afterwards."""
    described = described_model(model)
    names = [p.name for p in (*described.inputs, *described.outputs)]
    with stage("upload"):
        began, sent = time.perf_counter(), board.sent_bytes
        module = board.load(model)
        tensors = [board.tensor(array) for array in stored(described, inputs).values()]
        results = [
            board.tensor(inputs[p.state]) if p.state else board.empty(fixed_shape(p), p.dtype)
            for p in described.outputs
        ]
        upload = time.perf_counter() - began, board.sent_bytes - sent
    args = (*tensors, *results)
    with stage("run"):
        profile = partial(
            module.entry.profile, *args, threads=threads, cores=cores, timeout=timeout
        )
        first = profile(spans=spans and board.emulated)  # real boards record spans in a later run
        outputs = results_of(described, dict(zip(names, args, strict=True)))
    if board.emulated:
        runs, timing = [_warm(model, module.entry, args, first, timeout)], _as_timing(first)
    else:
        seconds = _seconds(first)
        repeat = min(max(round(TIMING_SECONDS / max(seconds, 1e-9)), SAMPLES[0]), SAMPLES[1])
        with stage("timing"):
            evaluator = module.entry.time_evaluator(
                number=1, repeat=repeat, min_repeat_ms=SAMPLE_MS, threads=threads, cores=cores,
                timeout=timeout * (repeat + 1),
            )  # fmt: skip
            timing = evaluator(*args)
            runs = _profiles(module.entry, args, repeat, threads, cores, timeout)
            runs[0] = replace(runs[0], turns=first.turns)
    one = profile(spans=True) if spans and not board.emulated else first
    return _Attempt(outputs, runs, timing, *upload, _seconds(first), one.spans)


def _warm(
    model: Deployable, entry: RemoteFunction, args: Sequence[RemoteTensor], first: Run,
    timeout: float,
) -> Run:  # fmt: skip
    """The first run, with the cache misses of a second one if the caches could hold the model.
    The outputs of the first run are read already."""
    counts = first.counts
    size = len(model.weights_bytes) + arena_bytes(model)
    if not counts or not counts[0].misses or size > WARM_BYTES or host_calls_of(model):
        return first
    again = entry.profile(*args, threads=1, timeout=timeout).counts
    assert again is not None
    return replace(
        first,
        counts=tuple(replace(a, misses=b.misses) for a, b in zip(counts, again, strict=True)),
    )


def _profiles(
    entry: RemoteFunction,
    args: Sequence[RemoteTensor],
    repeat: int,
    threads: int,
    cores: str,
    timeout: float,
) -> list[Run]:
    """Runs with timed layers. The board runs them back to back, as it times the whole model."""
    if entry.module.host_calls:
        return [
            entry.profile(*args, threads=threads, cores=cores, timeout=timeout)
            for _ in range(repeat)
        ]
    most = max(1, MAX_LAYER_TIMES // max(len(entry.module.model.calls), 1))
    evaluator = entry.time_evaluator(
        number=1, repeat=min(repeat, most), min_repeat_ms=SAMPLE_MS, threads=threads, cores=cores,
        layers=True, timeout=timeout * (repeat + 1),
    )  # fmt: skip
    layers = evaluator(*args).layers
    return [Run(tuple(round(seconds * 1e9) for seconds in row), None) for row in layers]


def refuse_cores(cores: str, url: str, device: Device) -> None:
    """Raises DeployError if the text does not name cores, Refused if the board lacks them."""
    try:
        device.refuse_cores(cores, url)
    except ValueError as error:
        mend = "fast, slow, or numbers such as 0-3 or 4,5"
        raise DeployError(str(error), where=url, mend=mend) from None


def thread_count(board: Session, cores: str) -> int:
    """One thread for each of the cores."""
    return min(board.device.count_cores(cores), MAX_THREADS)


def refuse_unfit(target: Target, url: str, device: Device) -> None:
    """Raises DeployError when the board cannot run the target's code, naming what it lacks."""
    if target.arch != device.machine:
        raise DeployError(
            f"the board runs programs for {device.machine}, and the target is {target.arch}",
            where=f"{url}, for the target {target.short_name}",
            mend="another board, or no target: the code is then for this board",
        )
    lacks = sorted(set(target.required_features) - device.features)
    if lacks:
        raise DeployError(
            f"the board lacks {', '.join(lacks)}, which code for the target needs",
            where=f"{url} ({cpu_model(device)}), for the target {target.short_name}",
            mend="another board, or no target: the code is then for this board",
        )


def fitting(kind: str, given: Mapping[str, Array], params: Mapping[str, Param]) -> dict[str, Array]:
    """The arrays, checked against the model's names, shapes and dtypes. Raises InputError."""
    given = {name: np.asarray(array) for name, array in given.items()}  # lists, too
    for name, array in given.items():
        if name not in params:
            near = get_close_matches(name, params, 3, 0.5) or list(params)[:5]
            raise InputError(
                f"the model has no {kind} '{name}'", mend=", ".join(near) or "none: it takes none"
            )
        wanted = params[name]
        if not fits(wanted, array.shape) or array.dtype.name != wanted.dtype:
            raise _misfit(kind, wanted, array)
    return given


def _misfit(kind: str, wanted: Param, array: Array) -> InputError:
    most = {name: n for name, n in zip(wanted.open, wanted.shape, strict=False) if name}
    bounds = ", ".join(f"{name} <= {n}" for name, n in most.items())
    mend = "array.astype(...) or array.reshape(...)"
    if array.ndim == len(wanted.shape):
        for name, size in zip(wanted.open, array.shape, strict=False):
            if name and size > int(most[name]):
                mend = f'at most {most[name]} for {name}, or compile with --bind "{name}<={size}"'
    return InputError(
        f"{kind} '{wanted.name}' is {wanted}{f' with {bounds}' if bounds else ''}, and the array "
        f"given is {array.dtype.name}{list(array.shape)}",
        mend=mend,
    )


def every_input(model: Deployable, given: Mapping[str, Array]) -> dict[str, Array]:
    """The model's inputs and states; missing ones are random, from a fixed seed."""
    described = described_model(model)
    return {
        n: given[n] if n in given else draw(n, fixed_shape(p), p.dtype, model.index_extents.get(n))
        for n, p in (described.arguments | described.states).items()
    }


def predict(outputs: Mapping[str, Array], labels: Array) -> Predictions | None:
    """The predictions of the first output with one row per label; None if there is none."""
    for name, output in outputs.items():
        if output.ndim > 0 and output.shape[:-1] == labels.shape:
            return Predictions(name, output.argmax(-1), labels)
    return None


def _measured(layers: Sequence[Layer], runs: Sequence[Run]) -> tuple[Layer, ...]:
    """The layers with their times and counts in the runs; the host's instructions are not
    counted."""
    counts, run_turns = runs[0].counts, runs[0].turns
    numbers = {False: itertools.count(), True: itertools.count()}
    measured: list[Layer] = []
    for layer in layers:
        n = next(numbers[layer.on_host])
        took = [(run.host_nanoseconds if layer.on_host else run.nanoseconds)[n] for run in runs]
        counted = None if counts is None or layer.on_host else counts[n]
        median_us = statistics.median(took) / 1e3
        turns = None if run_turns is None or layer.on_host else run_turns[n]
        measured.append(
            replace(
                layer,
                median_us=median_us,
                by_class=None if counted is None else counted.by_class,
                misses=None if counted is None else counted.misses,
                turns=turns,
            )
        )
    return tuple(measured)


def _as_timing(run: Run) -> Timing:
    return Timing((_seconds(run),), (1,), emulated=True)


def _seconds(run: Run) -> float:
    return (sum(run.nanoseconds) + sum(run.host_nanoseconds)) / 1e9


class OnBoard(Protocol):
    """What a job gets: a board with a session."""

    @property
    def session(self) -> Session: ...


def deploy_on(
    board: OnBoard,
    model: Deployable | Levelled,
    inputs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> Deployment:
    """A board's job: deploys a whole model with these options of `deploy`."""
    return deploy(model, board.session, inputs, **options)
