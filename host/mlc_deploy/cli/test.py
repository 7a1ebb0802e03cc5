"""`mlc-deploy test`: runs models on boards, and compares outputs and costs."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from mlc_targets import Target

from ..artifact import load_model
from ..artifact.format import is_saved
from ..board.connect import connect, target_of
from ..driver.deploy import RUN_SECONDS, deploy, deploy_on
from ..driver.deployment import Deployable, Deployment
from ..files import npy
from ..files.outside import name_of
from ..files.unfinished import write_whole
from .bench import FARM_HELP, of_farm
from .compare import RISE_HELP, changed, read_record
from .errors import FAILED, OK, UNREACHED, exit_status, message
from .help import BOARD, COMPILING, FARM, MODEL, OUTPUTS, command, grouped
from .options import DEBUG, LABEL, Misuse, folder, model_file, writable
from .place import choose
from .progress import Progress
from .run import INTERACTIVE, mismatches
from .verdicts import Verdict, as_html, as_junit, show

MODELS = (".mlc", ".onnx", ".pt2", ".tflite")  # of a folder
ALL = "all"
HERE = "local://"

Run = Callable[[Deployable, Mapping[str, Any], Mapping[str, Any]], "Future[Deployment]"]


@dataclass(frozen=True)
class Place:
    """Boards of one kind: the target to compile for, and how one of them runs a model. `away`: the
    error that kept the board away."""

    kind: str
    target: Target | None = None
    run: Run | None = None
    away: Exception | None = None


@dataclass(frozen=True)
class Subject:
    """A model's file. Beside it may be inputs and labels in NAME.npz, and right outputs in
    NAME.expect.npz."""

    name: str
    path: Path


@command(
    examples=(
        "mlc-deploy test models/ --output baseline",
        "mlc-deploy test models/ --baseline baseline --junit results.xml",
    )
)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@grouped(MODEL, "--trust", is_flag=True, help="Let .pt2 files run code on this machine")
@grouped(
    COMPILING, "--precision", type=click.Choice(("float32", "float16")), default="float32",
    help="Compute in float32 or float16 (default: float32)", metavar="P",
)  # fmt: skip
@grouped(
    BOARD, "--board", "boards", multiple=True, metavar="B",
    help="Run on B; repeat for more boards (default: this machine)",
)  # fmt: skip
@grouped(BOARD, "--threads", type=int, metavar="N", help="Run on N threads")
@grouped(FARM, "--farm", metavar="S", help=FARM_HELP)
@grouped(FARM, "--kinds", metavar="K,…", help="Use boards of these kinds (default: all)")
@grouped(OUTPUTS, "--baseline", metavar="DIR", help="Compare costs with the results in DIR")
@grouped(OUTPUTS, "--rise", type=float, default=1.0, metavar="PERCENT", help=RISE_HELP)
@grouped(OUTPUTS, "--output", metavar="DIR", help="Write the results there, as a later baseline")
@grouped(OUTPUTS, "--junit", metavar="FILE", help="Write the results as JUnit XML")
@grouped(OUTPUTS, "--html", metavar="FILE", help="Write the results as an HTML page")
@DEBUG
def test(
    models: tuple[str, ...],
    boards: tuple[str, ...],
    farm: str | None,
    kinds: str | None,
    baseline: str | None,
    rise: float,
    output: str | None,
    junit: str | None,
    html: str | None,
    precision: str,
    threads: int | None,
    trust: bool,
) -> int:
    """Run models on boards; fail on wrong outputs or higher cost.

    MODEL is a file or a folder of models (default: the model that ships with the package). Beside a
    model, NAME.npz may hold its inputs and NAME.expect.npz the expected outputs. All models run,
    even if one fails. The exit status is 1 if a model's outputs are wrong, if it does not run, or
    if it costs more than PERCENT above the baseline.
    """
    _refuse(boards, farm, kinds, baseline, output)
    if not 0 <= rise < float("inf"):
        raise Misuse("--rise must be 0 or more", where=f"--rise {rise:g}", mend="--rise 1")
    subjects = _subjects(models)
    before = _baseline(baseline)
    records = folder("--output", output) if output else None
    pages = [
        (writable(option, text), form)
        for option, text, form in (("--junit", junit, as_junit), ("--html", html, as_html))
        if text
    ]
    progress = Progress(False)
    options = {"precision": precision, "trust": trust}
    how = {"threads": threads, "timeout": RUN_SECONDS}
    with ExitStack() as stack:
        places = (
            _of_farm(farm, kinds, stack, progress)
            if farm
            else [_own(board, stack) for board in boards or (HERE,)]
        )
        sent: list[tuple[Subject, Place, Job]] = []
        for subject in subjects:
            with progress.stage(subject.name):
                sent += [(subject, p, _sent(subject, p, options, how)) for p in places]
        with progress.stage("boards"):
            verdicts = [_verdict(*each, before, rise) for each in sent]
    show(verdicts, sys.stdout)
    for verdict in verdicts:
        if records and verdict.record:
            text = json.dumps(verdict.record, indent=2, allow_nan=False)
            write_whole(records / _file(verdict.model, verdict.kind), text + "\n")
    for path, form in pages:
        write_whole(path, form(verdicts))
    if all(not v.ok and v.status == UNREACHED for v in verdicts):
        return UNREACHED
    return OK if all(v.ok for v in verdicts) else FAILED


def _refuse(
    boards: Sequence[str], farm: str | None, kinds: str | None, baseline: str | None,
    output: str | None,
) -> None:  # fmt: skip
    """Raises Misuse for options that exclude each other."""
    if farm and boards:
        what, where = "--board has no effect with a farm", f"--farm {farm}"
        raise Misuse(what, where=where, mend="--kinds K")
    if kinds and not farm:
        raise Misuse("--kinds is of a farm", where=f"--kinds {kinds}", mend="with --farm")
    for board, count in Counter(boards).items():
        if count > 1:
            raise Misuse("this board is given twice", where=f"--board {board}", mend="give it once")
    if baseline and output and Path(baseline).resolve() == Path(output).resolve():
        where = f"--output {output}"
        raise Misuse("the records would overwrite the baseline", where=where, mend="another folder")


def _subjects(models: Sequence[str]) -> list[Subject]:
    """The files of the arguments. Raises Misuse for a missing file and an empty folder."""
    found: list[Path] = []
    for text in models or (None,):
        path = model_file(text, ())
        if not path.is_dir():
            found.append(path)
            continue
        files = sorted(file for file in path.iterdir() if file.suffix in MODELS)
        if not files:
            mend = f"files of {', '.join(MODELS)}"
            raise Misuse("the folder holds no model", where=str(path), mend=mend)
        found += files
    found = list(dict.fromkeys(found))
    stems = Counter(name_of(path) for path in found)
    ends = Counter(path.name for path in found)
    names = [
        name_of(p) if stems[name_of(p)] == 1 else p.name if ends[p.name] == 1 else str(p)
        for p in found
    ]
    return [Subject(name, path) for name, path in zip(names, found, strict=True)]


def _baseline(text: str | None) -> Path | None:
    if text and not Path(text).is_dir():
        mend = "a folder that --output wrote"
        raise Misuse("there is no such folder", where=f"--baseline {text}", mend=mend)
    return Path(text) if text else None


def _file(model: str, kind: str) -> str:
    """The name of a record."""
    return re.sub(r"[^\w.@-]", "_", f"{model}@{kind}") + ".json"


# ------------------------------------------------------------------------------------------ places


def _own(board: str, stack: ExitStack) -> Place:
    """A board that this machine reaches. Its runs wait for each other."""
    wanted, url = choose(None, board)
    if url is None:
        raise Misuse("a test runs models", where=f"--board {board}", mend="--board local://")
    executor = ThreadPoolExecutor(1)
    stack.callback(executor.shutdown, cancel_futures=True)  # after the session ended its runs
    try:
        session = stack.enter_context(connect(url))
    except Exception as error:
        return Place(board, away=error)

    def run(
        model: Deployable, inputs: Mapping[str, Any], how: Mapping[str, Any]
    ) -> Future[Deployment]:
        return executor.submit(partial(deploy, model, session, inputs, **how))

    return Place(board, wanted or target_of(session.device), run)


def _of_farm(
    address: str, kinds: str | None, stack: ExitStack, progress: Progress
) -> list[Place]:  # fmt: skip
    """The kinds of a farm's boards; every board of a kind takes runs. Raises FarmError."""
    from ..farm.client import Farm  # here: it needs an extra

    farm = stack.enter_context(Farm(address, priority=INTERACTIVE, warn=progress.warn))
    every = sorted({board.kind for board in farm.boards() if board.about is not None})
    wanted: list[str | None] = [*every] if kinds is None or kinds == ALL else [*kinds.split(",")]
    places = []
    for kind in wanted or [None]:  # None: no kind, for which of_farm raises
        boards = of_farm(farm, kind, None, progress.warn).boards

        def run(
            model: Deployable, inputs: Mapping[str, Any], how: Mapping[str, Any],
            boards: Any = boards,
        ) -> Future[Deployment]:  # fmt: skip
            done: Future[Deployment] = boards.submit(deploy_on, model, inputs, how)
            return done

        places.append(Place(kind or boards.kind, target_of(boards.first().device), run))
    return places


# -------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Job:
    """A run that waits for its board, or the error that prevents it; seconds of preparation."""

    seconds: float
    done: Future[Deployment] | Exception

    def result(self) -> Deployment:
        if isinstance(self.done, Exception):
            raise self.done
        return self.done.result()


def _sent(
    subject: Subject, place: Place, options: Mapping[str, Any], how: Mapping[str, Any]
) -> Job:
    began = time.monotonic()
    done = _submitted(subject, place, options, how)
    return Job(time.monotonic() - began, done)


def _submitted(
    subject: Subject, place: Place, options: Mapping[str, Any], how: Mapping[str, Any]
) -> Future[Deployment] | Exception:
    if place.away is not None:
        return place.away
    assert place.run is not None and place.target is not None
    try:
        given, labels = _beside(subject.path, ".npz")
        right, _ = _beside(subject.path, ".expect.npz")
        model = _model(subject.path, place, given, options)
        return place.run(model, given, {**how, "expect": right, "labels": labels})
    except Exception as error:
        return error


def _model(
    path: Path, place: Place, given: Mapping[str, Any], options: Mapping[str, Any]
) -> Deployable:
    assert place.target is not None
    if is_saved(path):
        return load_model(path)
    from ..driver.compile import compile as compiled  # here: a saved model does not need it

    extents = {name: array.shape for name, array in given.items()}
    return compiled(path, place.target, shapes=extents, **options)


def _beside(path: Path, suffix: str) -> tuple[dict[str, Any], Any]:
    """The arrays of a file beside a model, and the labels among them. Raises Misuse."""
    file = path.with_suffix(suffix)
    if not file.is_file():
        return {}, None
    try:
        with npy.opened(file) as loaded:
            if not isinstance(loaded, npy.Arrays):
                raise npy.Unreadable("it holds one array without a name")
            found = dict(loaded)
    except npy.Unreadable as error:
        raise Misuse(str(error), where=str(file), mend="numpy.savez(file, NAME=array)") from None
    labels = found.pop(LABEL, None)
    return found, labels


def _verdict(subject: Subject, place: Place, job: Job, before: Path | None, rise: float) -> Verdict:
    began = time.monotonic()
    about = Verdict(subject.name, place.kind, job.seconds)
    try:
        done = job.result()
        record = done.record(subject.name)
        seconds = job.seconds + time.monotonic() - began
        failures = mismatches(done.checks, done.outputs)
        about = replace(about, seconds=seconds, record=record, failures=tuple(failures))
        return about if before is None else _held(about, before, rise)
    except Exception as error:
        return replace(about, failures=(message(error),), status=exit_status(error))


def _held(verdict: Verdict, before: Path, rise: float) -> Verdict:
    """A verdict with the change of the cost. Raises Misuse if the baseline's file is not a
    record."""
    assert verdict.record is not None
    file = before / _file(verdict.model, verdict.kind)
    if not file.is_file():
        return replace(verdict, note="not in the baseline")
    change = changed(read_record(str(file)), verdict.record, rise)
    if change is None:
        return replace(verdict, note="no figure in the baseline")
    rose = (f"{change.verdict}\n  in:  {file}",) if change.rose else ()
    return replace(verdict, change=change, failures=(*verdict.failures, *rose))
