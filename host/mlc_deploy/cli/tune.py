"""`mlc-deploy tune MODEL`: boards find the fastest schedule of each of a model's kernels."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from mlc_rpc import Unreachable
from mlc_targets import Target

from ..board.connect import connect, target_of
from ..driver.deploy import RUN_SECONDS, deploy
from .ending import orderly
from .errors import FAILED, INTERRUPTED, OK
from .json_file import JsonFile
from .options import (
    CONVERTERS_HELP,
    Misuse,
    converters,
    dims,
    known_cores,
    known_precision,
    one_level,
    shapes,
    source_file,
    writable,
)
from .place import NONE, choose, located
from .progress import Progress
from .run import CORES_HELP, PRECISION_HELP, TRUST_HELP
from .tables import line
from .tune_report import incident_text, recorded, show
from .tune_shown import shown

if TYPE_CHECKING:
    from mlc_rpc import Session

    from ..driver.compile import CompiledModel
    from ..driver.deploy import Deployment
    from ..driver.model_graph import ModelGraph
    from ..tune.api import Options, TunedModel
    from ..tune.boards import Incident
    from ..tune.database import Database
    from ..tune.tune import State

STRATEGIES = ("evolutionary", "random", "grid")
CANDIDATE_SECONDS = 10.0
TIMEOUT_HELP = f"how long a schedule may run for; {CANDIDATE_SECONDS:g}"


@click.command()
@click.argument("model")
@click.option("--target", metavar="T", help="armv7a, aarch64, a board's name, or 'llvm -mtriple=…'")
@click.option("--board", "boards", multiple=True, metavar="B", help="several measure in parallel")
@click.option("--trials", type=int, default=1000, metavar="N", help="schedules to try; 1000")
@click.option("--db", "db", required=True, metavar="FILE", help="what was found, and for --db")
@click.option("--from", "others", multiple=True, metavar="FILE", help="databases to begin with")
@click.option("--seed", type=int, default=0, metavar="N", help="another search; 0")
@click.option("--minutes", type=float, metavar="N", help="begin nothing more after as many")
@click.option("--search", "strategy", type=click.Choice(STRATEGIES), default=STRATEGIES[0])
@click.option("--batch", type=int, default=16, metavar="N", help="schedules of a round; 16")
@click.option("--early-stopping", type=int, metavar="N", help="of a kernel, after N in vain")
@click.option("--only", metavar="TEXT", default="", help="kernels whose names contain this")
@click.option("--keep-layouts", is_flag=True, help="tune kernels alone, in the layouts as they are")
@click.option("--shape", "shape", multiple=True, metavar="NAME=1,3,…", help="shape of an input")
@click.option("--bind", multiple=True, metavar="NAME=N", help="value of a named dimension")
@click.option("--converters", "own", metavar="FILE.py", help=CONVERTERS_HELP)
@click.option("--precision", metavar="P", help=PRECISION_HELP)
@click.option("--trust", is_flag=True, help=TRUST_HELP)
@click.option("--cores", metavar="fast|slow|0-3,…", default="", help=CORES_HELP)
@click.option(
    "--timeout", type=float, default=CANDIDATE_SECONDS, metavar="SECONDS", help=TIMEOUT_HELP
)
@click.option("--json", "json_file", metavar="FILE", help="write all of it; - is stdout")
@click.option("-v", "--verbose", is_flag=True, help="say each incident when it happens")
@click.option("--debug", is_flag=True, help="show where an error comes from")
def tune(
    model: str,
    target: str | None,
    boards: tuple[str, ...],
    trials: int,
    db: str,
    others: tuple[str, ...],
    seed: int,
    minutes: float | None,
    strategy: str,
    batch: int,
    early_stopping: int | None,
    only: str,
    keep_layouts: bool,
    shape: tuple[str, ...],
    bind: tuple[str, ...],
    own: str | None,
    precision: str | None,
    trust: bool,
    cores: str,
    timeout: float,
    json_file: str | None,
    verbose: bool,
    debug: bool,
) -> int:
    """Tries schedules of the kernels of MODEL, an .onnx or .pt2 file, on boards, and layouts of its
    convolutions, and keeps what each took in a database, with which `mlc-deploy MODEL --db FILE`
    then compiles.

    It can be stopped at any moment: the same command goes on. On emulated boards what counts is
    executed instructions. --from takes over what other databases have, of this board or others.
    """
    _above_zero({"--trials": trials, "--batch": batch, "--minutes": minutes, "--timeout": timeout,
                 "--early-stopping": early_stopping})  # fmt: skip
    path = source_file(model, ("tune",))
    if cores:
        known_cores(cores)
    if precision is not None:
        known_precision(precision)
    to_json = JsonFile(json_file, (model, db, *others))
    wanted, urls = _places(target, boards)
    how: dict[str, Any] = {"shapes": shapes(shape), "dims": dims(bind), "trust": trust}
    how |= {"converters": converters(own)} if own is not None else {}
    how |= {"precision": precision} if precision is not None else {}
    progress = Progress(verbose)
    began = time.perf_counter()

    from ..driver.model_graph import model_graph  # here, as the compiler takes a while to import
    from ..tune.api import Options

    database = _database(db, others, progress)
    options = Options(
        trials, batch, seed, strategy, minutes=minutes, early_stopping=early_stopping,
        seconds=timeout, layouts=not keep_layouts, cores=cores,
    )  # fmt: skip
    if wanted is None:
        with progress.stage("connect"), _connected(urls) as session:
            wanted = target_of(session.device)
    with progress.stage("graph"):
        graphs = model_graph(path, wanted, **how)
    run = _Run(path, graphs, wanted, precision or "float32", urls, options, database, progress)
    done: tuple[Deployment, Deployment] | None = None
    failed: BaseException | None = None
    try:
        with orderly():
            run.tune(only)
            done = run.whole_model(how)
    except (Exception, KeyboardInterrupt) as error:  # what is known by now is shown all the same
        if isinstance(error, Misuse) or run.state is None:
            raise
        if not run.state.tasks:
            progress.warn(f"{db} has what was measured, and the same command goes on")
            raise
        failed = error
    assert run.state is not None
    record = recorded(run.state, run.tuned, done, run.incidents, path.stem, wanted, urls)
    record |= {
        "board": run.board,
        "db": db,
        "place": f"--target {quote(target)}" if target else f"--board {urls[0]}",
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


def _above_zero(numbers: Mapping[str, float | None]) -> None:
    for option, value in numbers.items():
        if value is not None and not value > 0:
            raise Misuse(f"{option} is a number above 0", where=f"{option} {value:g}")


def _places(target: str | None, boards: Sequence[str]) -> tuple[Target | None, list[str]]:
    """The target (None: ask the first board), and the boards' URLs."""
    wanted, first = choose(
        one_level(target, "tune is for") if target else None, boards[0] if boards else None
    )
    if first is None or NONE in boards:
        raise Misuse("kernels are tuned on a board", where=f"--board {NONE}", mend="a board's URL")
    return wanted, [first, *(located(board).url for board in boards[1:])]


def _connected(urls: Sequence[str], machine: str | None = None) -> Session:
    """With the first board that is there. Raises Unreachable."""
    for url in urls[:-1]:
        with suppress(Unreachable):
            return connect(url, machine=machine)
    return connect(urls[-1], machine=machine)


def _database(db: str, others: Sequence[str], progress: Progress) -> Database:
    """The database, with all that the others have."""
    from ..tune.database import Database

    writable("--db", db)
    database = Database(db)
    for file in others:
        taken = database.merge(file)
        progress.console.print(line(f"{file}: {taken} results taken over", "dim"))
    for note in database.notes:
        progress.warn(note)
    return database


class _Run:
    """A tuning under way: what is known of it when it is stopped, too."""

    def __init__(
        self,
        path: Path,
        graphs: ModelGraph,
        target: Target,
        precision: str,
        urls: Sequence[str],
        options: Options,
        database: Database,
        progress: Progress,
    ) -> None:
        self.path, self.graphs, self.target, self.precision = path, graphs, target, precision
        self.urls, self.options, self.database, self.progress = urls, options, database, progress
        self.incidents: list[Incident] = []
        self.state: State | None = None
        self.tuned: TunedModel | None = None  # None: it was stopped
        self.board, self.measured = "", 0

    def tune(self, only: str) -> None:
        """Until it is done. Raises Misuse where there is nothing to tune; what run_model does."""
        from ..tune.api import NothingToTune, measuring, opened, run_model
        from ..tune.layouts import Model

        model = Model(self.graphs, self.target, self.precision)
        with (
            opened(self.urls, self.target, self._report) as pool,
            measuring(self.target, self.options, pool, self.database) as by,
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
        """The model untuned and tuned, each run on the board."""
        from ..driver.compile import compile

        with self.progress.stage("compile"):
            models = [compile(self.path, self.target, db=db, **how) for db in (None, self.database)]
        for note in models[1].notes:
            self.progress.warn(note)

        def ran(session: Session, model: CompiledModel) -> Deployment:
            return deploy(model, session, threads=1, cores=self.options.cores, timeout=RUN_SECONDS)

        with (
            self.progress.stage("model"),
            _connected(self.urls, self.target.arch) as session,
        ):
            return ran(session, models[0]), ran(session, models[1])
