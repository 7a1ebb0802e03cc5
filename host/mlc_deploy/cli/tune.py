"""`mlc-deploy tune MODEL`: boards find the fastest schedule of each of a model's kernels."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from mlc_targets import Target, qemu_cpu

from ..files.outside import name_of
from .bench import OfFarm, OwnBoards, of_farm, on_farms, refuse_mixed
from .calibrate import wanted_of
from .ending import orderly
from .errors import FAILED, INTERRUPTED, OK
from .help import ADVANCED, BOARD, COMPILING, FARM, OUTPUTS, SEARCH, command, grouped
from .json_file import JsonFile
from .options import (
    CORES,
    DEBUG,
    JSON_HELP,
    TARGET_HELP,
    Misuse,
    Reading,
    above_zero,
    one_level,
    reads_models,
    source_file,
    writable,
)
from .place import NONE, choose, located
from .progress import Progress
from .tables import line
from .tune_report import incident_text, recorded, show
from .tune_shown import shown

if TYPE_CHECKING:
    from ..driver.deployment import Deployment
    from ..driver.model_graph import ModelGraph
    from ..tune.api import Options, TunedModel
    from ..tune.boards import Incident
    from ..tune.tune import State
    from ..tuned import Database, Objective

STRATEGIES = ("evolutionary", "random", "grid")
CANDIDATE_SECONDS = 10.0
OBJECTIVES = ("seconds", "predicted", "instructions")  # tuned.Objective's; a test compares both
PREDICTED = "predicted"
OBJECTIVE_HELP = "seconds, predicted or instructions (default: by board)"


@command(
    examples=(
        "mlc-deploy tune model.onnx --board ssh://pi@pi4 --db tuned.jsonl --minutes 60",
        "mlc-deploy model.onnx --board ssh://pi@pi4 --db tuned.jsonl",
    )
)
@click.argument("model", required=False)
@reads_models
@grouped(
    SEARCH, "--db", "db", required=True, metavar="FILE", help="Keep the results in this database"
)
@grouped(
    SEARCH, "--from", "others", multiple=True, metavar="FILE",
    help="Start from the results of another database",
)  # fmt: skip
@grouped(SEARCH, "--objective", type=click.Choice(OBJECTIVES), metavar="O", help=OBJECTIVE_HELP)
@grouped(
    SEARCH, "--trials", type=int, default=1000, metavar="N", help="Try N schedules (default: 1000)"
)
@grouped(
    SEARCH, "--minutes", type=float, metavar="N",
    help="Stop starting trials after N minutes (default: no limit)",
)  # fmt: skip
@grouped(
    SEARCH, "--early-stopping", type=int, metavar="N",
    help="Stop a kernel after N trials without gain (default: no)",
)  # fmt: skip
@grouped(SEARCH, "--only", metavar="TEXT", default="", help="Tune kernels with TEXT in their names")
@grouped(SEARCH, "--keep-layouts", is_flag=True, help="Tune kernels, not layouts")
@grouped(
    SEARCH, "--search", "strategy", type=click.Choice(STRATEGIES), default=STRATEGIES[0],
    metavar="S", help=f"{STRATEGIES[0]} (default), {STRATEGIES[1]} or {STRATEGIES[2]} search",
)  # fmt: skip
@grouped(SEARCH, "--seed", type=int, default=0, metavar="N", help="Random seed (default: 0)")
@grouped(
    SEARCH, "--batch", type=int, default=16, metavar="N",
    help="Measure N schedules per round (default: 16)",
)  # fmt: skip
@grouped(
    SEARCH, "--timeout", type=float, default=CANDIDATE_SECONDS, metavar="SECONDS",
    help=f"Stop a schedule after SECONDS (default: {CANDIDATE_SECONDS:g})",
)  # fmt: skip
@grouped(COMPILING, "--target", metavar="T", help=TARGET_HELP)
@grouped(
    BOARD, "--board", "boards", multiple=True, metavar="B",
    help="Measure on B; repeat for more boards (see help boards)",
)  # fmt: skip
@CORES
@on_farms
@grouped(
    FARM, "--share", type=float, metavar="N",
    help="Share of board time relative to other users (default: 1)",
)  # fmt: skip
@grouped(OUTPUTS, "--json", "json_file", metavar="FILE", help=JSON_HELP)
@grouped(ADVANCED, "-v", "--verbose", is_flag=True, help="Report each incident as it happens")
@DEBUG
def tune(
    model: str | None,
    target: str | None,
    boards: tuple[str, ...],
    farm: str | None,
    kind: str | None,
    priority: int,
    share: float | None,
    objective: str | None,
    db: str,
    others: tuple[str, ...],
    trials: int,
    minutes: float | None,
    early_stopping: int | None,
    only: str,
    keep_layouts: bool,
    strategy: str,
    seed: int,
    batch: int,
    reading: Reading,
    cores: str,
    timeout: float,
    json_file: str | None,
    verbose: bool,
) -> int:
    """Search for faster schedules of a model's kernels on boards.

    MODEL is an .onnx, .tflite or .pt2 file (default: the model that ships with the package). Boards
    measure schedules of its kernels and layouts of its convolutions. Every result goes into the
    database; `mlc-deploy MODEL --db FILE` compiles with the best.

    You can stop it at any time; the same command continues. On QEMU, --objective predicted
    minimizes the predicted time of the target's board.
    """
    above_zero({"--trials": trials, "--batch": batch, "--minutes": minutes, "--timeout": timeout,
                "--early-stopping": early_stopping, "--share": share})  # fmt: skip
    path = source_file(model, ("tune",))
    to_json = JsonFile(json_file, (model, db, *others))
    refuse_mixed(farm, {"--board-kind": kind, "--priority": priority, "--share": share},
                 {"--board": boards})  # fmt: skip
    if farm and objective == PREDICTED:
        what = "boards of a farm simulate no caches, so they predict no times"
        raise Misuse(what, where=f"--objective {objective}", mend="--board qemu://, without --farm")
    target, own = wanted_of(target)
    if objective == PREDICTED and not boards and not farm and target:
        boards = (f"qemu://{qemu_cpu(one_level(target, 'tune is for'))}",)
    how = reading.arguments
    progress = Progress(verbose)
    began = time.perf_counter()

    from ..driver.model_graph import model_graph  # here: the compiler takes a while to import
    from ..tune.api import Options, simulated

    options = Options(
        trials, batch, seed, strategy, minutes=minutes, early_stopping=early_stopping,
        seconds=timeout, layouts=not keep_layouts, cores=cores,
        objective=cast("Objective | None", objective), speed=own.speed if own else None,
    )  # fmt: skip
    use = {"priority": priority, "share": share or 1.0}
    with _bench(target, boards, farm, kind, use, progress) as (wanted, bench):
        database = _database(db, others, progress)
        if wanted is None:
            with progress.stage("connect"):
                wanted = bench.target()
        if isinstance(bench, OwnBoards):
            bench = replace(bench, caches=simulated(wanted, options), own=own)
        with progress.stage("graph"):
            graphs = model_graph(path, wanted, **how)
        run = _Run(path, graphs, wanted, reading.precision, bench, options, database, progress)
        done: tuple[Deployment, Deployment] | None = None
        failed: BaseException | None = None
        try:
            with orderly():
                run.tune(only)
                done = run.whole_model(how)
        except (Exception, KeyboardInterrupt) as error:  # the tables show the results up to now
            if isinstance(error, Misuse) or run.state is None:
                raise
            if not run.state.tasks:
                some = database.records or database.plans
                so_far = f"{db} holds all results" if some else "nothing was measured yet"
                progress.warn(f"{so_far}; the same command continues")
                raise
            failed = error
        assert run.state is not None
        record = recorded(
            run.state, run.tuned, done, run.incidents, name_of(path), wanted, bench.urls
        )
        record |= {
            "board": run.board,
            "db": db,
            "command": _command(
                model, target or (str(wanted) if farm else None), bench.urls[0], db
            ),
            "measured": run.measured,
            "stopped": failed is not None,
            "total_s": time.perf_counter() - began,
            "notes": database.notes,
        }
        show(record, to_json.beside)
        to_json.write(record)
        if isinstance(failed, KeyboardInterrupt):
            return INTERRUPTED
        if failed is not None:
            raise failed
        return OK if all(layers.ok for layers in done or ()) else FAILED


def _command(model: str | None, target: str | None, url: str, db: str) -> str:
    """The command that compiles with the results."""
    place = ("--target", target) if target else ("--board", url)
    return shlex.join(["mlc-deploy", *([model] if model else []), *place, "--db", db])


def _places(target: str | None, boards: Sequence[str]) -> tuple[Target | None, list[str]]:
    """The target (None: ask the first board), and the boards' URLs."""
    wanted, first = choose(
        one_level(target, "tune is for") if target else None, boards[0] if boards else None
    )
    if first is None or NONE in boards:
        raise Misuse("tuning needs a board", where=f"--board {NONE}", mend="a board's URL")
    return wanted, [first, *(located(board).url for board in boards[1:])]


@contextmanager
def _bench(
    target: str | None,
    boards: Sequence[str],
    farm: str | None,
    kind: str | None,
    use: Mapping[str, Any],
    progress: Progress,
) -> Iterator[tuple[Target | None, OwnBoards | OfFarm]]:
    """The target (None: that of the boards), and the boards and builders. `use`: the user's
    priority and share in a farm."""
    if farm is None:
        wanted, urls = _places(target, boards)
        yield wanted, OwnBoards(urls)
        return
    from ..farm.client import Farm

    wanted = one_level(target, "tune is for") if target else None
    with Farm(farm, **use, warn=progress.warn) as connected:
        with progress.stage("connect"):
            found = of_farm(connected, kind, wanted, progress.warn)
        yield wanted, found


def _database(db: str, others: Sequence[str], progress: Progress) -> Database:
    """The database, with the results of the others."""
    from ..tuned import Database

    writable("--db", db)
    database = Database(db)
    for file in others:
        taken = database.merge(file)
        progress.console.print(line(f"{file}: {taken} results copied", "dim"))
    for note in database.notes:
        progress.warn(note)
    return database


class _Run:
    """A tuning under way, and its results so far: a stop keeps them."""

    def __init__(
        self,
        path: Path,
        graphs: ModelGraph,
        target: Target,
        precision: str,
        bench: OwnBoards | OfFarm,
        options: Options,
        database: Database,
        progress: Progress,
    ) -> None:
        self.path, self.graphs, self.target, self.precision = path, graphs, target, precision
        self.bench, self.options, self.database, self.progress = bench, options, database, progress
        self.incidents: list[Incident] = []
        self.state: State | None = None
        self.tuned: TunedModel | None = None  # None: it was stopped
        self.board, self.measured = "", 0

    def tune(self, only: str) -> None:
        """Tunes to the end. Raises Misuse if nothing can be tuned, and what run_model raises."""
        from ..tune.api import NothingToTune, measuring, run_model
        from ..tune.layouts import Model

        model = Model(self.graphs, self.target, self.precision)
        with (
            self.bench.opened(self.target, self._report) as (boards, builder),
            measuring(self.target, self.options, boards, self.database, builder) as by,
            shown(self.progress) as watch,
        ):
            self.board = by.board

            def seen(now: State) -> None:
                self.state = now
                watch(now)

            try:
                self.tuned = run_model(model, self.options, by, only=only, watch=seen)
                self.state = self.tuned.state
            except NothingToTune as error:
                where = f"{self.path} --only {only}" if only else str(self.path)
                raise Misuse(error.what, where=where, mend=error.mend) from None
            finally:
                self.measured = by.measured

    def _report(self, incident: Incident) -> None:
        self.incidents.append(incident)
        self.progress.note(incident_text(incident))

    def whole_model(self, how: Mapping[str, Any]) -> tuple[Deployment, Deployment]:
        """Runs the model untuned and tuned on the board."""
        from ..driver.compile import compile

        with self.progress.stage("compile"):
            models = [compile(self.path, self.target, db=db, **how) for db in (None, self.database)]
        for note in models[1].notes:
            self.progress.warn(note)

        with self.progress.stage("model"):
            untuned, tuned = self.bench.run(models, self.target, self.options.cores)
        return untuned, tuned
