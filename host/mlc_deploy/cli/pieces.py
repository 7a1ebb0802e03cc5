"""Shared by `generate` and `transcribe`: options, saved models, the board, pieces, and costs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mlc_targets import Target

from ..artifact import SavedModel
from ..board.connect import connect, target_of
from ..decode.api import Decoder, Reply
from ..decode.speech import Transcriber, Transcript
from ..driver.deploy import RUN_SECONDS, refuse_cores, refuse_unfit
from ..driver.levels import CompiledLevels
from ..files.outside import name_of
from .box import box_facts
from .help import BOARD, OUTPUTS, grouped
from .json_file import JsonFile
from .options import CORES, DEBUG, JSON_HELP, refuse_compiled
from .progress import Progress
from .saving import MODEL, save_model
from .tables import Record, bytes_text, console_for, count_text, print_facts

if TYPE_CHECKING:
    from mlc_rpc import Session

F = TypeVar("F", bound=Callable[..., Any])
Made = TypeVar("Made", Decoder, Transcriber)


def running(command: F) -> F:
    """Adds the options of a run on the board, and --json."""
    for add in (
        DEBUG,
        grouped(OUTPUTS, "--json", "json_file", metavar="FILE", help=JSON_HELP),
        grouped(
            BOARD, "--timeout", type=float, default=RUN_SECONDS, metavar="SECONDS",
            help=f"Stop a step on the board after SECONDS (default: {RUN_SECONDS:g})",
        ),
        CORES,
        grouped(
            BOARD, "--threads", type=int, metavar="N",
            help="Run on N threads (default: one per fast core; 1 on QEMU)",
        ),
        grouped(BOARD, "--board", metavar="B", help="Run on B (see mlc-deploy help boards)"),
    ):  # fmt: skip
        command = add(command)
    return command


def saved_one(
    load: Callable[[Path], Made], file: Path, of_compiler: Mapping[str, object], source: str
) -> Made | None:
    """The model of an .mlc file, None of other files. Raises Misuse for a compiler's options.
    source: the kind of thing that such a model is compiled from."""
    if file.suffix != MODEL:
        return None
    made = load(file)
    refuse_compiled(file, made.model.target, of_compiler, source)
    return made


def save_one(made: Decoder | Transcriber, to: str | None, file: Path) -> None:
    """Writes the model if --save asks for it."""
    if to is not None:
        assert not isinstance(made.model, SavedModel)
        save_model(CompiledLevels((made.model,)), to, file.stem)


@contextmanager
def fitting_board(
    url: str, wanted: Target | None, cores: str, progress: Progress
) -> Iterator[tuple[Session, Target]]:
    """A session with the board, and the target to compile for: the wanted one, or the board's own.
    Raises DeployError for cores or a target that the board lacks."""
    with progress.stage("connect"):
        session = connect(url, machine=wanted.arch if wanted else None)
    with session:
        for warning in session.warnings:
            progress.warn(warning)
        refuse_cores(cores, session.board, session.device)
        target = wanted or target_of(session.device)
        refuse_unfit(target, session.board, session.device)
        yield session, target


def print_pieces(pieces: Iterable[str | int], to_json: JsonFile) -> None:
    """Prints the pieces as they come: text, or the numbers of tokens."""
    for number, piece in enumerate(pieces):
        text = piece if isinstance(piece, str) else f"{', ' if number else ''}{piece}"
        to_json.beside.write(text)
        to_json.beside.flush()
    to_json.beside.write("\n")


def run_record(
    file: Path, target: Target, session: Session, written: Reply[Any] | Transcript
) -> Record:
    return {
        "model": name_of(file), "target": str(target), "board": session.board,
        "box": None if session.device.box is None else list(session.device.box),
        "emulated": session.emulated, "text": written.text or None, "reply": written.tokens,
        **written.summary.record(),
    }  # fmt: skip


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints the costs on stderr: stdout has only the text."""
    console = console_for(sys.stderr)
    console.print()
    print_facts(console, facts)


def emulated(record: Record) -> str:
    """A mark after seconds of an emulated board, which are not those of a real one."""
    return " (emulated)" if record["emulated"] else ""


def costs(record: Record) -> list[tuple[str, str]]:
    """The facts that every model's record has: memory, and instructions if they were counted."""
    memory = record["memory"]
    sizes = ((name, bytes_text(memory[name])) for name in ("weights", "cache", "arena"))
    found = [("memory", ", ".join(map(" ".join, sizes)))]
    if record["instructions"] is not None:
        per_token = f"{count_text(record['instructions'])} instructions per token"
        found.insert(0, ("counted", per_token))
    return [*found, *box_facts(record["box"])]
