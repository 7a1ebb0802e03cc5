"""`mlc-deploy board calibrate`: figures of a board for predictions, and --refine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import date
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from mlc_rpc.errors import RpcError
from mlc_rpc.transport import QemuUrl, parse_url
from mlc_targets import Target, TargetError
from mlc_targets.resolve import SHORT_NAMES

from ..board.calibrated import write_calibration
from ..board.connect import connect, target_of
from ..board.enrolled import Enrolled, enrolled_boards
from ..errors import MlcError
from .errors import OK
from .help import command
from .options import DEBUG, Misuse
from .place import is_local
from .progress import Progress
from .report import milliseconds
from .tables import add_row, console_for, plain_table, print_facts, tell

if TYPE_CHECKING:
    from ..driver.calibrate import Basis
    from ..driver.deployment import Deployable, Deployment
    from ..graph import Function
    from ..predict.calibration import Calibration

REFINE_HELP = "Refine a calibrated board's figures with this run"


@command("calibrate", examples=("mlc-deploy board calibrate kitchen",))
@click.argument("name")
@DEBUG
def calibrate_command(name: str) -> int:
    """Fit predictions to a board, in two to ten minutes.

    NAME is an enrolled board. Networks whose instructions QEMU has counted run on the board; three
    factors (computing, memory, threads) are fitted to their times and kept beside boards.toml.
    `--target NAME` then predicts for this very board, without a connection to it.
    """
    # here: the compiler takes a while to import
    from ..driver.calibrate import NETWORKS, basis_of, refuse_far, rows_of
    from ..driver.deployment import cpu_model
    from ..predict.calibration import calibrated

    known = enrolled(name)
    _refuse_emulated(known.url, f"board calibrate {name}")
    progress = Progress(False)
    try:
        with progress.stage("connect"):
            session = connect(known.url)
        with session:
            _refuse_emulated(session.board, known.url, session.emulated)
            own = Target("host") if is_local(known.url) else target_of(session.device)
            target = Target(known.target) if known.target else own
            basis = basis_of(target)
            with progress.stage("measure") as say:
                rows = rows_of(session, target, basis, NETWORKS, say=say)
            device = session.device
        found = calibrated(
            rows, board=name, url=known.url, cpu=cpu_model(device), cores=device.fast_cores,
            memory=device.memory,
            target=str(basis.target), base=basis.base, chip=_chip(basis), like=basis.like,
            date=today(),
        )  # fmt: skip
        refuse_far(found)
    except (MlcError, RpcError, KeyboardInterrupt):
        progress.warn(f"nothing was kept: the figures of '{name}' are as they were")
        raise
    path = write_calibration(name, found.as_json())
    show(found)
    tell(f"calibrated: --target {name} ({path})", sys.stderr)
    return OK


def enrolled(name: str) -> Enrolled:
    """An enrolled board. Raises Misuse for a URL or an unknown name."""
    where = f"board calibrate {name}"
    if "://" in name:
        what = "figures are kept by a board's name, and this is an address"
        raise Misuse(what, where=where, mend=f"mlc-deploy board enroll NAME {name}, then NAME")
    known = enrolled_boards()
    if name not in known:
        near = " or ".join(get_close_matches(name, known))
        mend = near or f"mlc-deploy board enroll {name} ssh://[user@]host"
        raise Misuse(f"no board is called '{name}'", where=where, mend=mend)
    return known[name]


def _refuse_emulated(url: str, where: str, emulated: bool = False) -> None:
    if emulated or ("://" in url and isinstance(parse_url(url), QemuUrl)):
        raise Misuse(
            "an emulated board has no times of its own: QEMU's seconds are not those of a board",
            where=where if urlsplit(where).scheme else f"{where}, {url}",
            mend="a real board; --target predicts for boards that are not",
        )


def _chip(basis: Basis) -> str:
    return "" if basis.like else basis.target.model


def today() -> str:
    return date.today().isoformat()


def show(found: Calibration) -> None:
    """Shows measured and fitted times of each network, and the factors."""
    console = console_for(sys.stdout)
    table = plain_table(
        ("network", False), ("threads", True), ("measured ms", True), ("usual ms", True),
        ("fitted ms", True), ("off", True),
    )  # fmt: skip
    for row in found.rows:
        ms = found.ms(row)
        usual = milliseconds(row.ms * (1 + row.spread)) if row.spread else ""
        add_row(table, row.name, str(row.threads), milliseconds(row.ms), usual, milliseconds(ms),
                f"{ms / row.ms - 1:+.0%}")  # fmt: skip
    console.print(table)
    console.print()
    print_facts(console, facts(found))


def facts(found: Calibration) -> list[tuple[str, str]]:
    factors, (low, high) = found.fitted.factors, found.fitted.interval
    on = f"what is published of a {found.core}"
    if found.like:
        on = f"a {found.core}'s, since nothing is known of this core"
    several = ""
    if any(row.threads > 1 for row in found.rows):
        several = f", with several threads {factors.threads:.3g} times"
    elif found.cores > 1:
        several = "; times with several threads say nothing"
    return [
        ("board", f"{found.board}, {found.url}, {found.cpu}"),
        ("factors", f"computing {factors.computing:.3g}, memory {factors.memory:.3g} times {on}"
                    f"{several}"),
        ("error", f"typically {found.fitted.error:.0%}; predictions are from {low:.2f} to "
                  f"{high:.2f} times"),
        *_noise(found),
    ]  # fmt: skip


def _noise(found: Calibration) -> list[tuple[str, str]]:
    """A note if other programs or a throttled clock made runs longer."""
    disturbed = [row.spread for row in found.rows if row.spread]
    if not disturbed:
        return []
    text = (
        f"{len(disturbed)} of {len(found.rows)} times were disturbed, and are the least seen; most "
        f"runs took up to {max(disturbed):.0%} more: mlc-deploy board doctor {found.board} says why"
    )
    return [("noise", text)]


# ------------------------------------------------------------------------- predictions for a board


def wanted_of(text: str | None) -> tuple[str | None, Calibration | None]:
    """The target of --target, as text, and the figures if it names a board of the user's. Raises
    Misuse for a board that was not calibrated."""
    if text is None or text.lower() in (*SHORT_NAMES, "host") or text not in enrolled_boards():
        return text, None
    from ..driver.calibrate import own_figures

    own = own_figures(text)
    if own is None:
        raise Misuse(
            f"the board '{text}' was not calibrated, so nothing can be predicted for it",
            where=f"--target {text}",
            mend=f"mlc-deploy board calibrate {text}, or --board {text} to run there",
        )
    return own.target, own


def to_refine(board: str | None) -> Calibration:
    """The figures of --board, for --refine. Raises Misuse if it has none."""
    from ..driver.calibrate import own_figures

    own = own_figures(board) if board and board in enrolled_boards() else None
    if own is None:
        raise Misuse(
            "only the figures of a calibrated board are refined",
            where=f"--refine --board {board}" if board else "--refine",
            mend="mlc-deploy board calibrate NAME, then --board NAME",
        )
    return own


def refined(
    own: Calibration, name: str, done: Deployment, graph: Function | None,
    given: Mapping[str, Any], progress: Progress,
) -> None:  # fmt: skip
    """Adds a measurement to a board's figures, and says how far off they were. Warns if the
    measurement does not count."""
    from ..driver.calibrate import basis_of, counted_run, counts_of
    from ..driver.compile import compile
    from ..predict.calibration import Row

    verdict = done.timing.verdict
    if verdict != "ok" or not done.ok:
        why = f"the times are {verdict}" if done.ok else "its outputs are wrong"
        progress.warn(f"the figures of '{own.board}' are as they were: {why}")
        return
    model: Deployable = done.model
    if Target(own.target).arch != model.target.arch:
        if graph is None:
            progress.warn(
                f"the figures of '{own.board}' are as they were: a saved model cannot be compiled "
                f"for the {own.core} that is counted"
            )
            return
        model = compile(graph, own.target)
    with progress.stage("count"):
        try:
            counts = counts_of(counted_run(model, basis_of(model.target), given))
        except (MlcError, RpcError, TargetError) as error:
            progress.warn(f"the figures of '{own.board}' are as they were: {error.what}")
            return
    row = Row(name, done.threads, done.timing.median * 1e3, counts)
    before = own.ms(row)
    better = own.with_rows([row], today())
    write_calibration(own.board, better.as_json())
    tell(
        f"refined: '{own.board}' had {milliseconds(before)} ms for {name}, which took "
        f"{milliseconds(row.ms)} ms; now it has {milliseconds(better.ms(row))} ms",
        sys.stderr,
    )
