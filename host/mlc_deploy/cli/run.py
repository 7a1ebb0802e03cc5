"""`mlc-deploy MODEL`: compile, deploy, check, time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from mlc_rpc.module import Param
from mlc_rpc.wire import MAX_THREADS
from mlc_targets import BASE, Target, best_level, levels_of

from ..artifact import SavedModel, load_model
from ..artifact.format import is_saved
from ..board.connect import connect, target_of
from ..driver.compare import Comparison
from ..driver.deploy import (
    RUN_SECONDS,
    Deployable,
    Deployment,
    compiled_record,
    deploy,
    described_model,
    fitting,
    refuse_cores,
    refuse_unfit,
)
from ..errors import writing
from ..files.unfinished import replacing
from .errors import FAILED, OK, complain
from .json_file import JsonFile
from .options import (
    CONVERTERS_HELP,
    Misuse,
    arrays,
    converters,
    dims,
    folder,
    known_cores,
    known_precision,
    model_file,
    one_level,
    shapes,
)
from .place import NONE, choose
from .progress import Progress
from .report import show
from .saving import FORMS, MODEL, emit_model, save_model, saved

if TYPE_CHECKING:
    from ..driver.levels import CompiledLevels
    from ..graph import Function
    from ..graph.nodes import Value

SHIPPED = Path(__file__).parents[1] / "models"
SAVE_HELP = "write the model: .mlc, or a folder, with what runs it; its kernels: .o, .s, .ll, .c"
PRECISION_HELP = "float16: what is float32 computes in that where it serves; float32: as it is"
DB_HELP = "what mlc-deploy tune found: kernels as it says"
THREADS_HELP = "threads on the board; as many as there are cores unless told, 1 on QEMU"
CORES_HELP = "where the threads stay; on the fast cores unless told, while they suffice"
TRUST_HELP = "the author of a .pt2 file may run code on this machine, where the file needs it"
TIMEOUT_HELP = f"how long a run on the board may take; {RUN_SECONDS:g} unless told"


class Job(click.Command):
    """Shown as what it is to users: the command itself."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("mlc-deploy", "[MODEL] [OPTIONS]")


@click.command(cls=Job, hidden=True)
@click.argument("model", required=False)
@click.option("--target", metavar="T", help="armv7a, aarch64, a board's name, or 'llvm -mtriple=…'")
@click.option("--board", metavar="B", help="qemu://[CPU], local://, ssh://[user@]host, or none")
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE", help=".npy or .npz")
@click.option("--expect", "expected", multiple=True, metavar="NAME=FILE", help="the right output")
@click.option("--shape", "shape", multiple=True, metavar="NAME=1,3,…", help="shape of an input")
@click.option("--bind", multiple=True, metavar="NAME=N", help="value of a named dimension")
@click.option("--converters", "own", metavar="FILE.py", help=CONVERTERS_HELP)
@click.option("--json", "json_file", metavar="FILE", help="write the record; - is stdout")
@click.option("--output", metavar="DIR", help="write the outputs there, or what --emit makes")
@click.option("--save", "saves", multiple=True, metavar="FILE", help=SAVE_HELP)
@click.option(
    "--emit", type=click.Choice(tuple(FORMS)), help="print the compiled model, and stop there"
)
@click.option("--precision", metavar="P", help=PRECISION_HELP)
@click.option("--db", metavar="FILE", help=DB_HELP)
@click.option("--trust", is_flag=True, help=TRUST_HELP)
@click.option("--threads", type=int, metavar="N", help=THREADS_HELP)
@click.option("--cores", metavar="fast|slow|0-3,…", default="", help=CORES_HELP)
@click.option("--timeout", type=float, default=RUN_SECONDS, metavar="SECONDS", help=TIMEOUT_HELP)
@click.option("-v", "--verbose", is_flag=True, help="passes, and instructions by class")
@click.option("--debug", is_flag=True, help="show where an error comes from")
def run(
    model: str | None,
    target: str | None,
    board: str | None,
    inputs: tuple[str, ...],
    expected: tuple[str, ...],
    shape: tuple[str, ...],
    bind: tuple[str, ...],
    own: str | None,
    json_file: str | None,
    output: str | None,
    saves: tuple[str, ...],
    emit: str | None,
    precision: str | None,
    db: str | None,
    trust: bool,
    threads: int | None,
    cores: str,
    timeout: float,
    verbose: bool,
    debug: bool,
) -> int:
    """Compiles MODEL, an .onnx or .pt2 file, for a target; runs it on a board, holds what it
    computes against the reference, and says what each layer costs. A MODEL that --save wrote runs
    as it is; it has no reference, so its outputs are compared where --expect gives what is right.

    `mlc-deploy inspect MODEL` says what a model consists of; `mlc-deploy board` knows your boards.

    Without MODEL, a small model that ships with the package classifies images. Without --board, the
    board is this machine where it runs the target's code, and QEMU otherwise; without --target, the
    target is what the board says of itself.
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise Misuse(
            f"a model runs on 1 to {MAX_THREADS} threads",
            where=f"--threads {threads}",
            mend="without it, as many as the board has fast cores",
        )
    if cores:
        known_cores(cores)
    if not timeout > 0:
        raise Misuse(
            "no run is over in no time", where=f"--timeout {timeout:g}", mend="seconds above 0"
        )
    progress = Progress(verbose)
    path = SHIPPED / "digits_cnn.onnx" if model is None else model_file(model, ("inspect", "tune"))
    if model is None and not inputs:
        inputs = (f"image={SHIPPED / 'digits.npz'}",)
    given, labels = arrays("--input", inputs)
    right, _ = arrays("--expect", expected)
    for save in saves:
        saved(save)
    ready = _saved_model(
        path,
        {"--target": target, "--shape": shape, "--bind": bind, "--converters": own,
         "--save": saves, "--emit": emit, "--precision": precision, "--db": db, "--trust": trust},
    )  # fmt: skip
    if precision is not None:
        known_precision(precision)
    to_json = JsonFile(json_file, (model, db))
    levels = levels_of(target) if target else ()
    asked = ready.target if ready else levels[0][1] if levels else None
    if emit and target:
        one_level(target, "--emit gives")
    wanted, url = choose(asked, NONE if emit and board is None else board)
    if url is None or emit:
        unused: dict[str, object] = {"--input": inputs if model else (), "--expect": expected}
        unused |= {"--json": json_file} if emit else {"--output": output}
        refuse_unused(unused, f"--emit {emit}" if emit else f"--board {NONE}")
    results = folder("--output", output) if output is not None else None
    graph = None
    if ready is None:
        with progress.stage("read"):
            graph = _graph(path, _shapes(shape, given), dims(bind), converters(own), trust)
    inputs_of, outputs_of = _signature(graph or ready)
    fitting("input", given, inputs_of)  # before a board is troubled
    fitting("output", right, outputs_of)
    with ExitStack() as stack:
        session = None
        if url is not None:
            machine = wanted.arch if wanted else None
            with progress.stage("connect"):
                session = stack.enter_context(connect(url, machine=machine))
            for warning in session.warnings:
                progress.warn(warning)
            refuse_cores(session, cores)
            wanted = wanted or target_of(session.device)
            if ready is None:
                refuse_unfit(wanted, session.board, session.device)
        if ready is not None:
            model_for_board: CompiledLevels | SavedModel = ready
            first: Deployable = ready
        else:
            if len(levels) < 2:
                assert wanted is not None
                levels = ((levels[0][0] if levels else BASE, wanted),)
            elif session and not saves:  # the others would run nowhere
                on = session.device
                levels = (levels[best_level((t for _, t in levels), on.machine, on.features)],)
            with progress.stage("compile"):
                assert graph is not None
                model_for_board = made = _compiled(
                    graph, path.stem, levels, precision, db, progress
                )
            first = made.programs[0]
            for save in saves:
                save_model(made, save, path.stem)
            if emit:
                with writing(results) if results else nullcontext():
                    emit_model(made.programs[0], emit, results, path.stem)
                return 0
        done = None
        if session:
            done = deploy(
                model_for_board, session, given, expect=right, labels=labels, threads=threads,
                cores=cores, timeout=timeout, stage=progress.stage,
            )  # fmt: skip
    record = done.record(path.stem) if done else compiled_record(first, path.stem)
    show(record, to_json.beside, verbose)
    to_json.write(record)
    return _results(done, results) if done else 0


def refuse_unused(options: Mapping[str, object], reason: str) -> None:
    """Raises Misuse for an option that would have no effect, since the model is not run."""
    for option, value in options.items():
        if value:
            raise Misuse(
                f"{option} has no effect where the model is not run",
                where=reason,
                mend=f"without {option}, or with a board",
            )


def _saved_model(path: Path, options: Mapping[str, object]) -> SavedModel | None:
    """The model of a file that is compiled already; None where it is not. Raises Misuse for options
    that ask for it to be compiled in some way, ArtifactError."""
    if path.is_dir() or not (path.suffix == MODEL or is_saved(path)):
        return None
    model = load_model(path)
    for option, value in options.items():
        if value:
            raise Misuse(
                f"the model is compiled already, for {model.target.short_name}",
                where=f"{path} {option}",
                mend=f"without {option}, or the model that it was compiled from",
            )
    return model


def _graph(
    path: Path,
    extents: Mapping[str, tuple[int, ...]],
    named: Mapping[str, int],
    own: Mapping[str, Any],
    trust: bool,
) -> Function:
    from ..frontend import from_model  # here, since a saved model does without the compiler

    return from_model(path, extents, named, own, trust)


def _signature(
    model: Function | SavedModel | None,
) -> tuple[dict[str, Param], dict[str, Param]]:
    """What a model takes and gives, by name."""
    assert model is not None
    if isinstance(model, SavedModel):
        described = described_model(model)
        return {p.name: p for p in described.inputs}, {p.name: p for p in described.outputs}

    def params(named: Iterable[tuple[str, Value]]) -> dict[str, Param]:
        return {name: Param(name, v.type.dtype, v.type.sizes) for name, v in named}

    return (
        params((p.name, p) for p in model.params),
        params(zip(model.output_names, model.outputs, strict=True)),
    )


def _compiled(
    graph: Function,
    name: str,
    levels: Sequence[tuple[str, Target]],
    precision: str | None,
    db: str | None,
    progress: Progress,
) -> CompiledLevels:
    from ..driver.levels import (
        compile_levels,  # here, since a saved model does without the compiler
    )

    made = compile_levels(
        graph, levels, precision=precision or "float32", db=db,
        watch=lambda name, _, changed: progress.note(name if changed else f"{name} (unchanged)"),
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


def _shapes(texts: Sequence[str], given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes by --shape, and those of the arrays that were given."""
    return {name: array.shape for name, array in given.items()} | shapes(texts)


def _results(done: Deployment, to: Path | None) -> int:
    """Writes the outputs where that is asked for, and says which are wrong; the exit status."""
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
            "  try: --output DIR, which writes what the board computed"
        )
    return texts


def _digits(value: float | int | bool) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
