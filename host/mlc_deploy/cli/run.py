"""`mlc-deploy MODEL`: compile, deploy, check, time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from mlc_rpc.wire import MAX_THREADS
from mlc_targets import BASE, Target, best_level, levels_of, qemu_cpu
from mlc_targets.object_format import Param

from ..artifact import SavedModel, load_model
from ..artifact.format import is_saved
from ..board.connect import connect, target_of
from ..driver.compare import Comparison
from ..driver.deploy import RUN_SECONDS, deploy, fitting, refuse_cores, refuse_unfit
from ..driver.deployment import Deployable, Deployment, compiled_record, described_model
from ..driver.details import details
from ..driver.stops import stop_after
from ..errors import CostsMore, GraphError, ShapeError, writing
from ..files.unfinished import replacing
from .bench import OfFarm, deploy_on, of_farm, on_farms, refuse_mixed
from .calibrate import REFINE_HELP, refined, to_refine, wanted_of
from .drawn import REPORT_HELP, TRACE_HELP, Drawn
from .errors import FAILED, OK, complain
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
    Misuse,
    Reading,
    above_zero,
    arrays,
    constants,
    converters,
    dims,
    folder,
    known_dims,
    model_file,
    one_level,
    ranges,
    reads_models,
    refuse_compiled,
    shapes,
    states,
)
from .place import NONE, choose, simulated
from .progress import Progress, Say, kernels_said
from .report import show
from .saving import FORMS, MODEL, emit_model, save_model, saved
from .stopping import STOP_HELP, shown_stops

if TYPE_CHECKING:
    from onnx import ModelProto

    from mlc_rpc import Session

    from ..driver.levels import CompiledLevels
    from ..graph import Function
    from ..graph.nodes import Value
    from ..quantize.api import Quantized
    from ..tune.boards import Described

SAVE_HELP = "write the model: .mlc, or a folder with its runtime; or its kernels: .o, .s, .ll, .c"
LINK_HELP = "put C functions that kernels call beside them: a .o or .c file"
INTERACTIVE = 1000  # added to a priority on a farm: above tuning of any usual priority
BOARD_HELP = "run on B: qemu://[CPU], local://, ssh://[user@]host, tcp://host:port, a name, or none"


class Job(click.Command):
    """The command as users know it: `mlc-deploy` itself, with the other commands below."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("mlc-deploy", "[MODEL] [OPTIONS]")
        formatter.write_usage("mlc-deploy", "COMMAND [OPTIONS]", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        commands = ctx.parent.command if ctx.parent else None
        if isinstance(commands, click.Group):
            commands.format_commands(ctx, formatter)


@click.command(cls=Job, hidden=True)
@click.argument("model", required=False)
@click.option("--target", metavar="T", help=TARGET_HELP)
@click.option("--board", metavar="B", help=BOARD_HELP)
@on_farms
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE", help="read an .npy or .npz")
@click.option("--expect", "expected", multiple=True, metavar="NAME=FILE", help="the right output")
@reads_models
@click.option("--data", metavar="D", help=f"{DATA_HELP} (with --precision int8)")
@click.option("--preprocess", metavar="TEXT", help=f"{PREPROCESS_HELP} (of --data)")
@click.option("--output", metavar="DIR", help="write the outputs there, or what --emit makes")
@click.option("--json", "json_file", metavar="FILE", help=JSON_HELP)
@click.option("--report", "report_file", metavar="FILE", help=REPORT_HELP)
@click.option("--trace", "trace_file", metavar="FILE", help=TRACE_HELP)
@click.option("--save", "saves", multiple=True, metavar="FILE", help=SAVE_HELP)
@click.option("--emit", type=click.Choice(tuple(FORMS)), help="print the compiled model and stop")
@click.option("--db", metavar="FILE", help=DB_HELP)
@click.option("--refine", is_flag=True, help=REFINE_HELP)
@click.option("--link", "link", multiple=True, metavar="FILE", help=LINK_HELP)
@click.option("--stop-after", "stops", multiple=True, metavar="LAYER[@N]", help=STOP_HELP)
@click.option(
    "--threads", type=int, metavar="N",
    help="use N threads on the board (default: one per fast core; 1 on QEMU)",
)  # fmt: skip
@CORES
@click.option(
    "--timeout", type=float, default=RUN_SECONDS, metavar="SECONDS",
    help=f"stop a run on the board after SECONDS (default: {RUN_SECONDS:g})",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="show passes, and instructions by class")
@DEBUG
def run(
    model: str | None,
    target: str | None,
    board: str | None,
    farm: str | None,
    kind: str | None,
    priority: int,
    inputs: tuple[str, ...],
    expected: tuple[str, ...],
    reading: Reading,
    data: str | None,
    preprocess: str | None,
    output: str | None,
    json_file: str | None,
    report_file: str | None,
    trace_file: str | None,
    saves: tuple[str, ...],
    emit: str | None,
    db: str | None,
    refine: bool,
    link: tuple[str, ...],
    stops: tuple[str, ...],
    threads: int | None,
    cores: str,
    timeout: float,
    verbose: bool,
) -> int:
    """Compiles MODEL for a target, runs it on a board, compares its outputs with the reference and
    shows what each layer costs.

    MODEL is an .onnx, .tflite or .pt2 file, or a file that --save wrote. A saved model runs as it
    is; it has no reference, so its outputs are compared only with --expect. Without MODEL, the
    model that ships with the package classifies images.

    Without --board, the board is this machine if it can run the target's code, else QEMU. Without
    --target, the target is what the board says of itself. With --farm, the board is any free one
    of a farm, and the run goes before tuning.
    """
    refuse_mixed(
        farm,
        {"--board-kind": kind, "--priority": priority},
        {"--board": board, "--emit": emit, "--stop-after": stops},
    )
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise Misuse(
            f"a model runs on 1 to {MAX_THREADS} threads",
            where=f"--threads {threads}",
            mend="without it: the default is one thread per fast core",
        )
    above_zero({"--timeout": timeout})
    progress = Progress(verbose)
    path = model_file(model, ("inspect", "tune"))
    if model is None and not inputs:
        inputs = (f"image={SHIPPED_DATA}",)
    if reading.precision == INT8:
        data = data or (str(SHIPPED_DATA) if model is None else None)
    else:
        unread = {"--data": data, "--preprocess": preprocess}
        of = f"--precision {reading.precision}"
        refuse_unused(unread, of, "nothing is quantized", f"with --precision {INT8}")
    given, labels = arrays("--input", inputs)
    right, _ = arrays("--expect", expected)
    for save in saves:
        saved(save)
    ready = _saved_model(
        path,
        {"--target": target, "--shape": reading.shape, "--bind": reading.bind,
         "--converters": reading.own, "--save": saves, "--emit": emit,
         "--precision": reading.asked_precision, "--data": data, "--db": db,
         "--trust": reading.trust, "--state": reading.state, "--const": reading.const,
         "--memory": reading.asked_memory, "--link": link},
    )  # fmt: skip
    to_json = JsonFile(json_file, (model, db))
    drawn = Drawn(report_file, trace_file, (model, db, json_file))
    to_be_refined = to_refine(board) if refine else None
    target, own_board = wanted_of(target)
    levels = levels_of(target) if target else ()
    asked = ready.target if ready else levels[0][1] if levels else None
    if emit and target:
        one_level(target, "--emit gives")
    board = NONE if emit and board is None else board
    if own_board and asked and board is None:  # predict, even if this machine runs its code
        board = f"qemu://{qemu_cpu(asked)}"
    wanted, url = (asked, None) if farm else choose(asked, board)
    if (url is None and not farm) or emit:
        unused: dict[str, object] = {"--input": inputs if model else (), "--expect": expected}
        pages = {"--report": report_file, "--trace": trace_file}
        unused |= {"--json": json_file, **pages} if emit else {"--output": output}
        unused["--stop-after"] = stops
        refuse_unused(unused, f"--emit {emit}" if emit else f"--board {NONE}")
    if stops:
        ends = {"--expect": expected, "--report": report_file, "--trace": trace_file}
        when = "the run ends before the outputs are there"
        refuse_unused(ends, f"--stop-after {stops[0]}", when, "without --stop-after")
    results = folder("--output", output) if output is not None else None
    own: dict[str, Any] = {}
    graph = None
    small: Quantized | None = None
    if ready is None:
        with progress.stage("read"):
            own = converters(reading.own)  # once: functions can be registered once only
            graph = graph_of(path, given, reading, own)
    inputs_of, outputs_of = _signature(graph or ready)
    fitting("input", given, inputs_of)  # refused before connecting to a board
    fitting("output", right, outputs_of)
    with ExitStack() as stack:
        session: Session | None = None
        of_the_farm: OfFarm | None = None
        on: Described | None = None
        if farm is not None:
            from ..farm.client import Farm

            connected = stack.enter_context(
                Farm(farm, priority=INTERACTIVE + priority, warn=progress.warn)
            )
            of_the_farm = of_farm(connected, kind, wanted, progress.warn)
            on = of_the_farm.boards.first()
        elif url is not None:
            machine = wanted.arch if wanted else None
            with progress.stage("connect"):
                caches = simulated(wanted, url, own_board)
                session = stack.enter_context(connect(url, machine=machine, caches=caches))
            for warning in session.warnings:
                progress.warn(warning)
            on = session
        if on is not None:
            refuse_cores(cores, on.board, on.device)
            wanted = wanted or target_of(on.device)
            if ready is None:
                refuse_unfit(wanted, on.board, on.device)
        if reading.precision == INT8 and ready is None:
            assert wanted is not None
            small = _in_int8(path, data, preprocess, wanted, given, reading, own, link, progress)
            if small is not None:
                without = replace(reading, const=())  # constants are in the model now
                graph = graph_of(small.model, given, without, own)
        if ready is not None:
            model_for_board: CompiledLevels | SavedModel = ready
            first: Deployable = ready
        else:
            if len(levels) < 2:
                assert wanted is not None
                if on is not None and graph is not None:
                    _warn_of_hidden(wanted, on, graph, reading.rest, progress)
                levels = ((levels[0][0] if levels else BASE, wanted),)
            elif on and not saves:  # only this board's level will run
                best = best_level((t for _, t in levels), on.device.machine, on.device.features)
                levels = (levels[best],)
            with progress.stage("compile") as say:
                assert graph is not None
                model_for_board = made = compiled(
                    graph, path.stem, levels, reading, db, link, progress, say
                )
            first = made.programs[0]
            for save in saves:
                save_model(made, save, path.stem)
            if emit:
                with writing(results) if results else nullcontext():
                    emit_model(made.programs[0], emit, results, path.stem)
                return 0
        if stops:
            assert session
            record = compiled_record(first, path.stem)
            with progress.stage("run"):
                found = stop_after(
                    model_for_board, session, given, stops,
                    threads=threads, cores=cores, timeout=timeout,
                )  # fmt: skip
                record["stops"] = shown_stops(found, results, to_json.beside)
            to_json.write(record | {"steps": progress.steps})
            return OK
        done = None
        how: dict[str, Any] = {
            "expect": right, "labels": labels, "threads": threads, "cores": cores,
            "timeout": timeout, "spans": trace_file is not None,
        }  # fmt: skip
        if session:
            done = deploy(
                model_for_board, session, given, **how, own=own_board, stage=progress.stage
            )
        elif of_the_farm:
            with progress.stage("farm"):
                job = of_the_farm.boards.submit(deploy_on, model_for_board, given, how)
                done = job.result()
    record = done.record(path.stem) if done else compiled_record(first, path.stem)
    if small is not None:
        record["quantized"] = small.record()
    if report_file:
        with progress.stage("report"):
            record["details"] = details(done.model if done else first)
    record["steps"] = progress.steps
    show(record, to_json.beside, verbose)
    to_json.write(record)
    status = _results(done, results) if done else OK
    drawn.write(record)
    if to_be_refined and done:
        refined(to_be_refined, path.stem, done, graph, given, progress)
    return status


def refuse_unused(
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


def _in_int8(
    path: Path, data: str | None, preprocess: str | None, target: Target,
    given: Mapping[str, Any], reading: Reading, own: Mapping[str, Any], link: Sequence[str],
    progress: Progress,
) -> Quantized | None:  # fmt: skip
    """The model in small integers; None, with a warning, if floats cost less on the target."""
    from ..quantize.api import quantize  # here: a saved model needs no compiler
    from ..quantize.costs import counted

    extents = {name: array.shape for name, array in given.items()} | shapes(reading.shape)
    try:
        made = quantize(
            path, data, target=target if counted(target) else None, preprocess=preprocess,
            shapes=extents, dims=known_dims(reading.bind), values=constants(reading.const),
            converters=own, link=link, stage=progress.stage,
        )  # fmt: skip
    except CostsMore:
        where = target.short_name
        progress.warn(f"int8 costs more than float32 on {where}, so the model runs in float32")
        return None
    for note in made.notes:
        progress.warn(note)
    return made


def _saved_model(path: Path, options: Mapping[str, object]) -> SavedModel | None:
    """The model of a file that --save wrote; None for other files. Raises ArtifactError, and Misuse
    for options of the compiler."""
    if path.is_dir() or not (path.suffix == MODEL or is_saved(path)):
        return None
    model = load_model(path)
    refuse_compiled(path, model.target, options, "model")
    return model


def graph_of(
    model: Path | ModelProto, given: Mapping[str, Any], reading: Reading, own: Mapping[str, Any]
) -> Function:
    """The model's graph. Its inputs have the shapes of --shape, or of the given arrays; dimensions
    that --bind leaves open stay open."""
    from ..frontend import from_model  # here: a saved model needs no compiler
    from ..graph.ranges import parted
    from ..graph.states import stateful

    bound, fixed = parted(dims(reading.bind))[0], shapes(reading.shape)
    read = partial(
        from_model, model, dims=bound, converters=own, trust=reading.trust,
        values=constants(reading.const),
    )  # fmt: skip
    every = {name: array.shape for name, array in given.items()} | fixed
    try:
        function = read(fixed if any(isinstance(n, str) for n in bound.values()) else every)
    except ShapeError:  # the arrays have the shapes that the options lack
        function = read(every)
    try:
        return stateful(function, states(reading.state))
    except GraphError as error:
        where = " ".join(f"--state {text}" for text in reading.state)
        raise Misuse(error.what, where=where, mend=error.mend) from None


def _warn_of_hidden(
    target: Target, on: Described, graph: Function, precision: str, progress: Progress
) -> None:
    from ..driver.hidden import hidden_features, hidden_text  # here: as in graph_of

    found = hidden_features(target, on.device.features, graph, precision)
    if found:
        progress.warn(hidden_text(target, on.board, found))


def _signature(
    model: Function | SavedModel | None,
) -> tuple[dict[str, Param], dict[str, Param]]:
    """The model's inputs and outputs, by name."""
    assert model is not None
    if isinstance(model, SavedModel):
        described = described_model(model)
        return described.arguments | described.states, described.results
    from ..graph.extents import largest, open_extents  # here: as in graph_of

    names, most = open_extents(model), dict(model.extents)

    def params(named: Iterable[tuple[str, Value]]) -> dict[str, Param]:
        return {
            name: Param(name, t.dtype, t.sizes, open=names.get(name, ()))
            for name, t in ((name, largest(v.type, most)) for name, v in named)
            if name not in most
        }

    return (
        params((p.name, p) for p in model.params),
        params(zip(model.output_names, model.outputs, strict=True)),
    )


def compiled(
    graph: Function,
    name: str,
    levels: Sequence[tuple[str, Target]],
    reading: Reading,
    db: str | None,
    link: Sequence[str],
    progress: Progress,
    say: Say,
) -> CompiledLevels:
    from ..driver.levels import compile_levels  # here: a saved model needs no compiler

    made = compile_levels(
        graph, levels, precision=reading.rest, db=db, link=link, states=states(reading.state),
        watch=lambda name, _, changed: progress.note(name if changed else f"{name} (unchanged)"),
        progress=kernels_said(say), dims=ranges(reading.bind),
    )  # fmt: skip
    made = replace(made, programs=tuple(replace(p, name=name) for p in made.programs))
    for program in made.programs:
        count, level = program.kernels_compiled + program.kernels_cached, program.level
        of = f" for {level}" if len(made.programs) > 1 else ""
        progress.note(f"{count} kernels{of}, {program.kernels_cached} of them from the cache")
        if db is not None:
            progress.note(f"{len(program.kernels_tuned)} of {count} kernels{of} are tuned")
        for note in program.notes:
            progress.warn(note)
    return made


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
