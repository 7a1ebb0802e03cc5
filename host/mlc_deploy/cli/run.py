"""`mlc-deploy MODEL`: compile, deploy, check, time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.shell_completion import CompletionItem

from mlc_rpc.wire import MAX_THREADS
from mlc_targets import BASE, Target, best_level, levels_of, qemu_cpu

from ..artifact import SavedModel
from ..board.connect import connect, target_of
from ..driver.compare import Comparison
from ..driver.deploy import RUN_SECONDS, deploy, deploy_on, fitting, refuse_cores, refuse_unfit
from ..driver.deployment import Deployable, Deployment, compiled_record
from ..driver.details import details
from ..driver.processes import Processes
from ..driver.stops import stop_after
from ..errors import writing
from ..files.outside import name_of
from ..files.unfinished import replacing
from .bench import OfFarm, of_farm, on_farms, refuse_mixed
from .calibrate import REFINE_HELP, refined, to_refine, wanted_of
from .compiling import (
    Source,
    compiled,
    read_source,
    saved_model,
    signature,
    warn_of_hidden,
)
from .drawn import REPORT_HELP, TRACE_HELP, Drawn
from .ending import alone
from .errors import FAILED, OK, complain
from .help import ADVANCED, BOARD, COMPILING, MODEL, OUTPUTS, Command, Option, by_group, grouped
from .json_file import JsonFile
from .options import (
    CORES,
    DATA_HELP,
    DB_HELP,
    DEBUG,
    INT8,
    JSON_HELP,
    PREPROCESS_HELP,
    SHIPPED_DATA,
    TARGET_HELP,
    Array,
    Misuse,
    Reading,
    above_zero,
    arrays,
    folder,
    model_file,
    one_level,
    reads_models,
)
from .place import NONE, choose, simulated
from .progress import Progress
from .report import show
from .saving import FORMS, emit_model, save_model, saved
from .stopping import STOP_HELP, shown_stops

if TYPE_CHECKING:
    from mlc_rpc import Session

    from ..driver.levels import CompiledLevels
    from ..predict.calibration import Calibration
    from ..tune.boards import Described

SAVE_HELP = "Save the compiled model: .mlc, .o, .s, .ll, .c or folder"
LINK_HELP = "Link C functions that kernels call: a .o or .c file"
EXAMPLES = (
    "mlc-deploy model.onnx --board ssh://pi@raspberrypi.local",
    "mlc-deploy model.onnx --target raspberry-pi/4b    # emulated by QEMU",
)
INTERACTIVE = 1000  # added to a priority on a farm: above tuning of any usual priority
BOARD_HELP = "Run on B: ssh://HOST, qemu://CPU, local:// … (see help boards)"


class Job(Command):
    """The command as users know it: `mlc-deploy` itself, with its common options, and the other
    commands below."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("mlc-deploy", "[MODEL] [OPTIONS]")
        formatter.write_usage("mlc-deploy", "COMMAND [OPTIONS]", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        common = [p for p in self.get_params(ctx) if isinstance(p, Option) and not p.rare]
        for group, rows in by_group(common, ctx).items():
            with formatter.section(group):
                formatter.write_dl(rows)
        commands = ctx.parent.command if ctx.parent else None
        if isinstance(commands, click.Group):
            commands.format_commands(ctx, formatter)
        self.format_examples(formatter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line of a run."""

    model: str | None
    target: str | None
    board: str | None
    farm: str | None
    kind: str | None
    priority: int
    inputs: tuple[str, ...]
    expected: tuple[str, ...]
    reading: Reading
    data: str | None
    preprocess: str | None
    output: str | None
    json_file: str | None
    report_file: str | None
    trace_file: str | None
    saves: tuple[str, ...]
    emit: str | None
    db: str | None
    refine: bool
    link: tuple[str, ...]
    stops: tuple[str, ...]
    threads: int | None
    cores: str
    timeout: float
    verbose: bool

    @property
    def of_compiler(self) -> dict[str, object]:
        """The options that a saved model has no use for."""
        reading = self.reading
        return {
            "--target": self.target, "--shape": reading.shape, "--bind": reading.bind,
            "--converters": reading.own, "--save": self.saves, "--emit": self.emit,
            "--precision": reading.asked_precision, "--data": self.data, "--db": self.db,
            "--trust": reading.trust, "--state": reading.state, "--const": reading.const,
            "--memory": reading.asked_memory, "--link": self.link,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays of --input and --expect. labels: the right classes of the inputs."""

    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    labels: Array | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the model is to run. target: None if the board says it. url: None for a farm's boards,
    and if the model is only compiled. levels: of --target. calibration: of the user's board that
    an emulated one stands for."""

    target: Target | None
    url: str | None
    levels: Sequence[tuple[str, Target]]
    calibration: Calibration | None


@dataclass(frozen=True, slots=True)
class Connected:
    """A session with a board, or a farm that lends boards like the described one."""

    described: Described
    session: Session | None = None
    farm: OfFarm | None = None


def _first_words(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions of the first word: names of commands, else files."""
    commands = ctx.parent.command if ctx.parent else None
    names = commands.list_commands(ctx) if isinstance(commands, click.Group) else []
    found = [CompletionItem(n) for n in names if n != ctx.command.name and n.startswith(incomplete)]
    return found if found and incomplete else [*found, CompletionItem(incomplete, type="file")]


@click.command(cls=Job, hidden=True, examples=EXAMPLES)
@click.argument("model", required=False, shell_complete=_first_words)
@grouped(
    MODEL, "--input", "inputs", multiple=True, metavar="NAME=FILE",
    help="Read an input from .npy or .npz (default: random)",
)  # fmt: skip
@reads_models
@grouped(COMPILING, "--target", metavar="T", help=TARGET_HELP)
@grouped(COMPILING, "--data", metavar="D", rare=True, help=f"{DATA_HELP} (for --precision int8)")
@grouped(
    COMPILING, "--preprocess", metavar="TEXT", rare=True, help=f"{PREPROCESS_HELP} (for --data)"
)
@grouped(COMPILING, "--db", metavar="FILE", help=DB_HELP)
@grouped(COMPILING, "--link", "link", multiple=True, metavar="FILE", rare=True, help=LINK_HELP)
@grouped(
    COMPILING, "--emit", type=click.Choice(tuple(FORMS)), metavar="FORM",
    help="Print the model as llvm, asm, obj, c or ir, and stop",
)  # fmt: skip
@grouped(BOARD, "--board", metavar="B", help=BOARD_HELP)
@on_farms
@grouped(
    BOARD, "--threads", type=int, metavar="N",
    help="Run on N threads (default: one per fast core; 1 on QEMU)",
)  # fmt: skip
@CORES
@grouped(
    BOARD, "--timeout", type=float, default=RUN_SECONDS, metavar="SECONDS", rare=True,
    help=f"Stop a run on the board after SECONDS (default: {RUN_SECONDS:g})",
)  # fmt: skip
@grouped(
    OUTPUTS, "--expect", "expected", multiple=True, metavar="NAME=FILE", rare=True,
    help="Compare an output with this .npy or .npz file",
)  # fmt: skip
@grouped(OUTPUTS, "--output", metavar="DIR", help="Write the outputs, or what --emit makes, to DIR")
@grouped(OUTPUTS, "--json", "json_file", metavar="FILE", help=JSON_HELP)
@grouped(OUTPUTS, "--report", "report_file", metavar="FILE", help=REPORT_HELP)
@grouped(OUTPUTS, "--trace", "trace_file", metavar="FILE", rare=True, help=TRACE_HELP)
@grouped(OUTPUTS, "--save", "saves", multiple=True, metavar="FILE", help=SAVE_HELP)
@grouped(
    ADVANCED, "--stop-after", "stops", multiple=True, metavar="LAYER[@N]", rare=True,
    help=STOP_HELP,
)  # fmt: skip
@grouped(ADVANCED, "--refine", is_flag=True, rare=True, help=REFINE_HELP)
@grouped(
    ADVANCED, "-v", "--verbose", is_flag=True, rare=True,
    help="Show passes, and instructions by class",
)  # fmt: skip
@DEBUG
def run(**options: Any) -> int:
    """Compile MODEL, run it on a board, check its outputs and time each layer.

    MODEL is an .onnx, .tflite or .pt2 file, or a file written by --save (default: a small image
    classifier that ships with the package). Outputs are compared with a reference computed here;
    for a saved model, use --expect.
    """
    asked = Options(**options)
    _refuse_mistakes(asked)
    progress = Progress(asked.verbose)
    path = model_file(asked.model, ("inspect", "tune"))
    given = _arrays(asked)
    for save in asked.saves:
        saved(save)
    ready = saved_model(path, asked.of_compiler)
    to_json = JsonFile(asked.json_file, (asked.model, asked.db))
    drawn = Drawn(asked.report_file, asked.trace_file, (asked.model, asked.db, asked.json_file))
    to_be_refined = to_refine(asked.board) if asked.refine else None
    place = _place(asked, ready)
    _refuse_unread(asked, place)
    results = folder("--output", asked.output) if asked.output is not None else None
    workers = click.get_current_context().with_resource(Processes(forked=alone()))
    if ready is None and asked.reading.precision != INT8:  # quantizing takes longer than a start
        workers.start_for(path, repr(asked))
    with nullcontext() if ready else progress.stage("read"):
        source = ready or read_source(path, given.inputs, asked.reading)
    inputs_of, outputs_of = signature(source.graph if isinstance(source, Source) else source)
    fitting("input", given.inputs, inputs_of)  # refused before connecting to a board
    fitting("output", given.expected, outputs_of)
    with _connected(asked, place, progress) as board:
        if board:
            refuse_cores(asked.cores, board.described.board, board.described.device)
        model: CompiledLevels | SavedModel
        first: Deployable
        if isinstance(source, Source):
            target = _target_for(board, place)
            if asked.reading.precision == INT8:
                source = _in_int8(asked, source, given, target, progress)
            with workers:
                model = _compiled(asked, source, place, target, board, progress, workers)
            first = model.programs[0]
            for save in asked.saves:
                save_model(model, save, path.stem)
            if asked.emit:
                with writing(results) if results else nullcontext():
                    emit_model(model.programs[0], asked.emit, results, path.stem)
                return OK
        else:
            model = first = source
        if asked.stops:
            assert board and board.session
            record = compiled_record(first, name_of(path))
            with progress.stage("run"):
                found = stop_after(
                    model, board.session, given.inputs, asked.stops,
                    threads=asked.threads, cores=asked.cores, timeout=asked.timeout,
                )  # fmt: skip
                record["stops"] = shown_stops(found, results, to_json.beside)
            to_json.write(record | {"steps": progress.steps})
            return OK
        done = _deployed(asked, model, given, place, board, progress) if board else None
    record = done.record(name_of(path)) if done else compiled_record(first, name_of(path))
    if isinstance(source, Source) and source.quantized:
        record["quantized"] = source.quantized.record()
    if asked.report_file:
        with progress.stage("report"):
            record["details"] = details(done.model if done else first)
    record["steps"] = progress.steps
    show(record, to_json.beside, asked.verbose)
    to_json.write(record)
    status = _results(done, results) if done else OK
    drawn.write(record)
    if to_be_refined and done:
        graph = source.graph if isinstance(source, Source) else None
        refined(to_be_refined, name_of(path), done, graph, given.inputs, progress)
    return status


def _refuse_mistakes(asked: Options) -> None:
    """Raises Misuse for numbers out of range, and for options that exclude each other."""
    refuse_mixed(
        asked.farm,
        {"--board-kind": asked.kind, "--priority": asked.priority},
        {"--board": asked.board, "--emit": asked.emit, "--stop-after": asked.stops},
    )
    if asked.threads is not None and not 1 <= asked.threads <= MAX_THREADS:
        raise Misuse(
            f"a model runs on 1 to {MAX_THREADS} threads",
            where=f"--threads {asked.threads}",
            mend="without it: the default is one thread per fast core",
        )
    above_zero({"--timeout": asked.timeout})
    if asked.reading.precision != INT8:
        unread = {"--data": asked.data, "--preprocess": asked.preprocess}
        of = f"--precision {asked.reading.precision}"
        _refuse_unused(unread, of, "nothing is quantized", f"with --precision {INT8}")


def _arrays(asked: Options) -> Arrays:
    inputs = asked.inputs
    if asked.model is None and not inputs:
        inputs = (f"image={SHIPPED_DATA}",)
    given, labels = arrays("--input", inputs)
    expected, _ = arrays("--expect", asked.expected)
    return Arrays(given, expected, labels)


def _place(asked: Options, ready: SavedModel | None) -> Place:
    """Raises Misuse, and TargetError."""
    text, calibration = wanted_of(asked.target)
    levels = levels_of(text) if text else ()
    target = ready.target if ready else levels[0][1] if levels else None
    if asked.emit and text:
        one_level(text, "--emit gives")
    if asked.farm:
        return Place(target, None, levels, calibration)
    board = NONE if asked.emit and asked.board is None else asked.board
    if calibration and target and board is None:  # predict, even if this machine runs its code
        board = f"qemu://{qemu_cpu(target)}"
    return Place(*choose(target, board), levels, calibration)


def _refuse_unread(asked: Options, place: Place) -> None:
    """Raises Misuse for an option of runs if the model does not run, or stops early."""
    pages = {"--report": asked.report_file, "--trace": asked.trace_file}
    if asked.emit or not (place.url or asked.farm):
        inputs = asked.inputs if asked.model else ()
        unused: dict[str, object] = {"--input": inputs, "--expect": asked.expected}
        unused |= {"--json": asked.json_file, **pages} if asked.emit else {"--output": asked.output}
        unused["--stop-after"] = asked.stops
        _refuse_unused(unused, f"--emit {asked.emit}" if asked.emit else f"--board {NONE}")
    if asked.stops:
        when = "the run ends before the outputs are there"
        reason = f"--stop-after {asked.stops[0]}"
        _refuse_unused({"--expect": asked.expected, **pages}, reason, when, "without --stop-after")


def _refuse_unused(
    options: Mapping[str, object], reason: str, when: str = "the model is not run",
    mend: str = "with a board",
) -> None:  # fmt: skip
    """Raises Misuse for an option without effect."""
    for option, value in options.items():
        if value:
            raise Misuse(
                f"{option} has no effect where {when}",
                where=reason,
                mend=f"without {option}, or {mend}",
            )


@contextmanager
def _connected(asked: Options, place: Place, progress: Progress) -> Iterator[Connected | None]:
    """The board or the farm; None if the model is only compiled."""
    if asked.farm is not None:
        from ..farm.client import Farm  # here: it needs an extra

        with Farm(asked.farm, priority=INTERACTIVE + asked.priority, warn=progress.warn) as farm:
            of_the_farm = of_farm(farm, asked.kind, place.target, progress.warn)
            yield Connected(of_the_farm.boards.first(), farm=of_the_farm)
    elif place.url is not None:
        machine = place.target.arch if place.target else None
        with progress.stage("connect"):
            caches = simulated(place.target, place.url, place.calibration)
            session = connect(place.url, machine=machine, caches=caches)
        with session:
            for warning in session.warnings:
                progress.warn(warning)
            yield Connected(session, session=session)
    else:
        yield None


def _target_for(board: Connected | None, place: Place) -> Target:
    """The target to compile for: the chosen one, or what the board says of itself. Raises
    DeployError if the board lacks it."""
    if board is None:
        assert place.target is not None
        return place.target
    on = board.described
    target = place.target or target_of(on.device)
    refuse_unfit(target, on.board, on.device)
    return target


def _in_int8(
    asked: Options, source: Source, given: Arrays, target: Target, progress: Progress
) -> Source:
    data = asked.data or (None if asked.model else str(SHIPPED_DATA))
    return source.in_int8(data, asked.preprocess, target, given.inputs, asked.link, progress)


def _compiled(
    asked: Options, source: Source, place: Place, target: Target, board: Connected | None,
    progress: Progress, workers: Processes,
) -> CompiledLevels:  # fmt: skip
    """The model, compiled for the target; for several CPU levels if --target says so."""
    levels = place.levels
    if len(levels) < 2:
        if board:
            warn_of_hidden(target, board.described, source.graph, source.reading.rest, progress)
        levels = ((levels[0][0] if levels else BASE, target),)
    elif board and not asked.saves:  # only this board's level will run
        device = board.described.device
        best = best_level((t for _, t in levels), device.machine, device.features)
        levels = (levels[best],)
    with progress.stage("compile") as say:
        return compiled(
            source.graph, name_of(source.path), levels, source.reading, asked.db, asked.link,
            progress, say, workers,
        )  # fmt: skip


def _deployed(
    asked: Options, model: CompiledLevels | SavedModel, given: Arrays, place: Place,
    board: Connected, progress: Progress,
) -> Deployment:  # fmt: skip
    how: dict[str, Any] = {
        "expect": given.expected, "labels": given.labels, "threads": asked.threads,
        "cores": asked.cores, "timeout": asked.timeout, "spans": asked.trace_file is not None,
    }  # fmt: skip
    if board.session:
        return deploy(
            model, board.session, given.inputs, **how, own=place.calibration, stage=progress.stage
        )
    assert board.farm
    with progress.stage("farm"):
        return board.farm.boards.submit(deploy_on, model, given.inputs, how).result()


def _results(done: Deployment, to: Path | None) -> int:
    """Writes the outputs if --output asks for them, names the wrong ones, and returns the exit
    status."""
    if to is not None:
        for name, array in done.outputs.items():
            file = re.sub(r"[^\w.-]", "_", name)  # names may hold slashes
            with replacing(to / f"{file}.npy") as part, part.open("wb") as opened:
                np.save(opened, array)
    for text in mismatches(done.checks, done.outputs):
        complain(text)
    return OK if done.ok else FAILED


def mismatches(checks: Mapping[str, Comparison], outputs: Mapping[str, Any]) -> list[str]:
    """A message for each output that is wrong."""
    texts = []
    for name, check in checks.items():
        if check.ok:
            continue
        if check.shapes:
            mine, right = (list(shape) for shape in check.shapes)
            texts.append(
                f"output '{name}' has the shape {mine}, the reference {right}\n"
                f"  in:  how many elements there are, known at run time\n"
                "  try: --output DIR, which writes the board's outputs"
            )
            continue
        if check.wrong:
            what = f"output '{name}' is wrong in {check.wrong} of {outputs[name].size} elements"
        else:
            what = f"output '{name}' has its largest number elsewhere in {check.misplaced} rows"
        place = f"[{', '.join(map(str, check.worst))}]"
        texts.append(
            f"{what}\n"
            f"  in:  {place}: expected {_digits(check.expected)}, got {_digits(check.got)}\n"
            "  try: --output DIR, which writes the board's outputs"
        )
    return texts


def _digits(value: float | int | bool) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
