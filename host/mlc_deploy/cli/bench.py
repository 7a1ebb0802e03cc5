"""The boards and builders of a tuning: those that this machine reaches, or those of a farm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlc_rpc import Session, Unreachable
from mlc_targets import Target

from ..board.connect import connect, target_of
from ..driver.deploy import RUN_SECONDS, deploy, deploy_on
from ..driver.deployment import Deployable, Deployment
from ..errors import FarmError
from .help import FARM, grouped
from .options import Misuse

if TYPE_CHECKING:
    from mlc_targets.caches import Cache

    from ..farm.client import Farm, FarmBoards
    from ..predict.calibration import Calibration
    from ..tune.boards import Boards, Incident

Report = Callable[["Incident"], None]


FARM_HELP = "Use the boards of a farm; S is its scheduler, tls://host"


def on_farms(command: Any) -> Any:
    """Adds the options of a command that runs on a farm."""
    for add in (
        grouped(
            FARM, "--priority", type=int, default=0, metavar="N", rare=True,
            help="Run before work of lower priority (default: 0)",
        ),
        grouped(
            FARM, "--board-kind", "kind", metavar="KIND", rare=True,
            help="Use boards of this kind",
        ),
        grouped(FARM, "--farm", metavar="S", rare=True, help=FARM_HELP),
    ):  # fmt: skip
        command = add(command)
    return command


def refuse_mixed(
    farm: str | None, of_farms: Mapping[str, object], of_others: Mapping[str, object]
) -> None:
    """Raises Misuse for a farm's options without --farm, and for `of_others` with it."""
    for option, value in (of_others if farm else of_farms).items():
        if value and farm:
            raise Misuse(f"{option} has no effect with a farm", where=f"--farm {farm}",
                         mend="--board-kind KIND")  # fmt: skip
        if value:
            raise Misuse(f"{option} is of a farm", where=f"{option} {value}", mend="with --farm")


@dataclass(frozen=True)
class OwnBoards:
    """Boards by URL, and this machine's cores as builders. caches: those that emulated boards
    simulate; own: the calibration of the board that they stand for."""

    urls: Sequence[str]
    caches: Sequence[Cache] = ()
    own: Calibration | None = None

    def target(self) -> Target:
        """The target of the first board, which says what it is. Raises Unreachable."""
        with self._connected() as session:
            return target_of(session.device)

    @contextmanager
    def opened(self, target: Target, report: Report) -> Iterator[tuple[Boards, Executor | None]]:
        from ..tune.api import opened  # here: the compiler takes a while to import

        with opened(self.urls, target, report, self.caches) as pool:
            yield pool, None

    def run(self, models: Sequence[Deployable], target: Target, cores: str) -> list[Deployment]:
        """Runs the models on the first board that answers, one after the other."""
        with self._connected(target.arch) as session:
            return [
                deploy(model, session, threads=1, cores=cores, timeout=RUN_SECONDS, own=self.own)
                for model in models
            ]

    def _connected(self, machine: str | None = None) -> Session:
        for url in self.urls[:-1]:
            with suppress(Unreachable):
                return connect(url, machine=machine, caches=self.caches)
        return connect(self.urls[-1], machine=machine, caches=self.caches)


@dataclass(frozen=True)
class OfFarm:
    """Boards of one kind of a farm, and its builders."""

    farm: Farm
    boards: FarmBoards

    @property
    def urls(self) -> Sequence[str]:
        return self.boards.urls

    def target(self) -> Target:
        """The target of the boards, which say what they are."""
        return target_of(self.boards.first().device)

    @contextmanager
    def opened(self, target: Target, report: Report) -> Iterator[tuple[Boards, Executor | None]]:
        if not self.farm.builders():
            where, mend = self.farm.address, "mlc-deploy farm join, with --builders above 0"
            raise FarmError("the farm has no builders", where=where, mend=mend)
        yield self.boards, self.farm.builder()

    def run(self, models: Sequence[Deployable], target: Target, cores: str) -> list[Deployment]:
        """Runs each model on any of the boards."""
        options = {"threads": 1, "cores": cores, "timeout": RUN_SECONDS}
        jobs = [self.boards.submit(deploy_on, model, None, options) for model in models]
        return [job.result() for job in jobs]


def of_farm(
    farm: Farm, kind: str | None, target: Target | None, warn: Callable[[str], None]
) -> OfFarm:
    """The boards of a farm with comparable times. Raises FarmError if no kind of boards fits, or
    several do; warns of boards that are left out."""
    from ..farm.client import FarmBoards, matching

    chosen, others = matching(farm.boards(), kind, target, farm.address)
    for other in others:
        board = other.board
        warn(f"{board.url} of {board.host} is left out: {other.why}")
        if other.slow:
            farm.set_aside(board, other.why)
    return OfFarm(farm, FarmBoards(farm, chosen))
