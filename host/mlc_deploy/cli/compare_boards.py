"""`mlc-deploy compare-boards`: predicts times of a model on boards that are not there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from mlc_rpc.counters import plugin_remedy
from mlc_targets import BASE, Target, board_names, qemu_cpu
from mlc_targets.caches import Cache, caches_for, caches_of
from mlc_targets.cores import core_names, memory_mib, predicted_boards, speed

from ..board.calibrated import calibration_file
from ..board.connect import connect
from ..board.enrolled import enrolled_boards
from ..driver.deploy import deploy
from ..driver.deployment import Deployment
from ..files.outside import name_of
from ..predict.calibration import Calibration
from ..predict.counting import Forecast, forecast
from .calibrate import wanted_of
from .compiling import compiled, graph_of
from .help import COMPILING, OUTPUTS, command, grouped
from .json_file import JsonFile
from .options import DEBUG, Misuse, Reading, converters, model_file, reads_models
from .progress import Progress
from .report import milliseconds
from .tables import add_row, bytes_text, console_for, plain_table, print_facts

BOARDS_HELP = "Predict for this board or calibrated board; repeat for more (default: all)"
FITS = {True: "yes", False: "no", None: "unknown"}
SYSTEM_MIB = 128  # for a small Linux without a desktop


@command(
    name="compare-boards",
    examples=(
        "mlc-deploy compare-boards model.onnx",
        "mlc-deploy compare-boards model.onnx --target raspberry-pi/5 --precision int8",
    ),
)
@click.argument("model")
@grouped(COMPILING, "--target", "targets", multiple=True, metavar="T", help=BOARDS_HELP)
@reads_models
@grouped(
    OUTPUTS, "--json", "json_file", metavar="FILE", help="Write the table as JSON (-: to stdout)"
)
@DEBUG
def compare_boards(
    model: str, targets: tuple[str, ...], reading: Reading, json_file: str | None
) -> int:
    """Predict latency and memory on boards that you do not have.

    MODEL is compiled for each kind of core and runs once in QEMU, which counts instructions and
    simulates caches. Boards with equal cores differ by clock, caches and memory. Your calibrated
    boards have their own figures.
    """
    path = model_file(model, ("inspect", "tune"))
    boards = [checked(text) for text in targets or (*predicted_boards(), *calibrated_boards())]
    to_json = JsonFile(json_file, (model,))
    progress = Progress(False)
    own = converters(reading.own)
    with progress.stage("read"):
        graph = graph_of(path, {}, reading, own)
    rows: list[Row] = []
    for kind in dict.fromkeys(board.kind for board in boards):
        group = [board for board in boards if board.kind == kind]
        target, caches = group[0].target, group[0].caches
        progress.note(f"{target.mcpu}: {len(group)} boards")
        with progress.stage(target.mcpu) as say:
            made = compiled(
                graph, name_of(path), ((BASE, target),), reading, None, (), progress, say
            )
            url = f"qemu://{qemu_cpu(target)}"
            with connect(url, machine=target.arch, caches=caches) as session:
                done = deploy(made, session)
        rows += [row_of(board, done) for board in group]
    rows.sort(key=lambda row: row.forecast.one.ms)
    show(name_of(path), rows, to_json.beside)
    to_json.write({"model": name_of(path), "boards": [row.record() for row in rows]})
    return 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A board to predict for: a kind of board, or one of the user's, with its own figures."""

    name: str
    target: Target
    own: Calibration | None

    @property
    def caches(self) -> tuple[Cache, ...]:
        return caches_of(self.own.base.l1_kib) if self.own else caches_for(self.target.mcpu)

    @property
    def kind(self) -> object:
        """Boards of equal kinds share one run in QEMU."""
        return self.target.mcpu, self.target.arch, tuple(self.target.mattr), self.caches


@dataclass(frozen=True, slots=True)
class Row:
    """A board, the model's time there, the bytes it needs, and the board's memory (0: unknown)."""

    board: str
    forecast: Forecast
    needed: int
    memory: int

    @property
    def fits(self) -> bool | None:
        return self.needed <= self.memory if self.memory else None

    def record(self) -> dict[str, Any]:
        return {
            "board": self.board,
            "predicted": self.forecast.record(),
            "needed_bytes": self.needed,
            "memory_bytes": self.memory or None,
            "fits": self.fits,
        }


def calibrated_boards() -> list[str]:
    """The names of the user's calibrated boards."""
    return [name for name in enrolled_boards() if calibration_file(name).exists()]


def checked(text: str) -> Wanted:
    """A board with a known speed. Raises Misuse, and TargetError for text that is not a target."""
    of_board, own = wanted_of(text)
    target = Target(of_board or text)
    if own:
        return Wanted(text, target, own)
    if target.tag.lower() not in board_names():
        raise Misuse(
            f"'{text}' is not a board",
            where=f"--target {text}",
            mend=f"one of {', '.join(predicted_boards()[:6])}, …",
        )
    if speed(target.mcpu, target.model) is None:
        raise Misuse(
            f"nothing is known of how fast a {target.mcpu} is",
            where=f"--target {text}",
            mend=f"a board with one of {', '.join(core_names())}",
        )
    return Wanted(text, target, None)


def row_of(board: Wanted, done: Deployment) -> Row:
    counts = [(layer.by_class or {}, layer.misses or {}) for layer in done.layers]
    found = forecast(board.target, counts, board.own)
    if found is None:
        raise Misuse(
            "instructions were not counted, so nothing can be predicted",
            where=done.url,
            mend=f"{plugin_remedy()}; a model without functions that run on the host",
        )
    record = done.record()
    needed = sum(record[f"{part}_bytes"] for part in ("object", "weights", "arena"))
    mib = memory_mib(board.target.tag) if board.target.tag else 0
    whole = board.own.memory if board.own else mib << 20
    return Row(board.name, found, needed, max(whole - (SYSTEM_MIB << 20), 0))


def show(model: str, rows: Sequence[Row], stream: Any) -> None:
    console = console_for(stream or sys.stdout)
    table = plain_table(
        ("board", False), ("core", False), ("MHz", True), ("predicted ms", True), ("from", True),
        ("to", True), ("all fast cores", True), ("needs", True), ("has", True), ("fits", False),
    )  # fmt: skip
    for row in rows:
        found = row.forecast
        threads, ms = max(found.threads.items())
        add_row(
            table, row.board, found.speed.core, f"{found.speed.mhz:,.0f}",
            milliseconds(found.one.ms), milliseconds(found.one.low), milliseconds(found.one.high),
            f"{milliseconds(ms)} ({threads})", bytes_text(row.needed),
            bytes_text(row.memory) if row.memory else "unknown", FITS[row.fits],
        )  # fmt: skip
    console.print(table)
    console.print()
    calibrated = dict.fromkeys(row.forecast.own for row in rows if row.forecast.own)
    notes = (
        f"{model}: predicted, not measured; by one thread, and by the board's fast cores",
        f"'has' is the smallest board sold, without {SYSTEM_MIB} MiB for its system",
        *(f"{c.board} was calibrated on {c.date}; it has what it said then" for c in calibrated),
    )
    print_facts(console, (("note", text) for text in notes))
