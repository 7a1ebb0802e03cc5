"""From candidates to results. Results in the database are taken from there; other candidates are
built and run, several at once, and their results are on the disk before they count.

Builds and runs are jobs of two executors of concurrent.futures: `build` for build_object, `boards`
for functions of a board (boards.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from math import inf
from threading import Lock

from mlc_targets.cores import Speed

from ..driver.builder import build_object
from ..driver.workers import WorkerDied, WorkerTimeout
from ..errors import MlcError
from ..tuned import Database, Measured, Objective, Record, pack
from .boards import BoardExecutor, BoardLost
from .records import Candidate, Task
from .reference import Reference, reference_of
from .runner import MESSAGE, RUN_SECONDS, Request, measure, tensors_of

KEPT_BYTES = 1 << 20  # of objects
REMEMBERED = 512  # objects; schedules with the same one mostly follow each other


@dataclass(eq=False)
class Round:
    """Candidates of a task under way. known: results in the database already, by place."""

    task: Task
    candidates: Sequence[Candidate]
    known: dict[int, Measured] = field(default_factory=dict)
    running: dict[Future[Measured], int] = field(default_factory=dict)


@dataclass(eq=False)
class Measuring:
    """`board` is the fingerprint of the boards, `run` the name of the search for its records."""

    build: Executor
    boards: BoardExecutor
    database: Database
    board: str
    objective: Objective
    run: str
    seconds: float = RUN_SECONDS  # limit of a candidate's run
    cores: str = ""  # of the board, as in Request
    speed: Speed | None = None  # for predicted times
    check: bool = True  # the outputs of a candidate that is better than all before
    apart: bool = False  # boards do not disturb each other or this machine
    measured: int = 0  # candidates that were built or run
    _ran: dict[tuple[str, bytes], Future[Measured]] = field(default_factory=dict)  # by object
    _built: dict[tuple[str, str], bytes] = field(default_factory=dict)  # by workload and program
    _lock: Lock = field(default_factory=Lock)  # of both
    _references: dict[str, Reference | bytes] = field(default_factory=dict)

    def begin(
        self,
        task: Task,
        candidates: Sequence[Candidate],
        best: float = inf,
        *,
        final: bool = False,
        again: bool = False,
    ) -> Round:
        """Starts on candidates. best: the task's lowest cost so far. final: measure carefully, even
        if measured before. again: try failed ones again. Raises what build_object raises for the
        default."""
        past = self._past(task)
        known = self.database.best(
            task.workload, str(task.target), board=self.board, objective=self.objective
        )
        if known is not None:  # the lowest cost may be luck; candidates below this are checked
            best = max(best, known.cost)
        begun = Round(task, candidates)
        if self.check:
            self._reference(task)
        for place, candidate in enumerate(candidates):
            before = past.get(candidate.program)
            if before and not final and not (again and before.measured.verdict != "ok"):
                begun.known[place] = before.measured
                continue
            outcome: Future[Measured] = Future()
            begun.running[outcome] = place
            key = task.workload, candidate.program
            self._object(key, candidate, task, final).add_done_callback(
                partial(self._run, key=key, task=task, outcome=outcome, best=best, final=final)
            )
        return begun

    def _object(
        self, key: tuple[str, str], candidate: Candidate, task: Task, final: bool
    ) -> Future[bytes]:
        """The candidate's object; for a final measurement it is usually kept from before."""
        with self._lock:
            known = self._built.get(key) if final else None
        if known is None:
            return self.build.submit(build_object, candidate.func, task.target)
        built: Future[bytes] = Future()
        built.set_result(known)
        return built

    def _keep(self, key: tuple[str, str], code: bytes) -> None:
        with self._lock:
            self._built[key] = code
            while sum(map(len, self._built.values())) > KEPT_BYTES:
                del self._built[next(iter(self._built))]

    def finish(
        self,
        begun: Round,
        *,
        final: bool = False,
        counts: Callable[[Measured], bool] = lambda _: True,
    ) -> list[Measured]:
        """The results in the candidates' order; those that count are on the disk. Raises
        Unreachable when no board is left, and other errors that end a job."""
        results = dict(begun.known)
        waiting = set(begun.running)
        for outcome in as_completed(begun.running):
            ready = [f for f in waiting if f.done()]  # one write for all that are ready
            waiting.difference_update(ready)
            places = {begun.running[f]: f.result() for f in ready if f.exception() is None}
            results.update(places)
            self.measured += len(places)
            told = [
                self._record(begun.task, begun.candidates[n], m, final)
                for n, m in places.items()
                if counts(m)
            ]
            if told:
                self.database.add(told)
            outcome.result()  # raises what ended it
        return [results[n] for n in range(len(begun.candidates))]

    def _past(self, task: Task) -> dict[str, Record]:
        return self.database.programs(
            task.workload, str(task.target), self.board, self.objective, final=False
        )

    def _record(self, task: Task, candidate: Candidate, m: Measured, final: bool) -> Record:
        return Record(
            task=task.name,
            workload=task.workload,
            target=str(task.target),
            board=self.board,
            objective=self.objective,
            run=self.run,
            program=candidate.program,
            packed=pack(candidate.trace.dumps()),
            measured=m,
            final=final,
        )

    def _reference(self, task: Task) -> None:
        """Finds the reference for outputs: numpy, or else the default kernel."""
        if task.workload not in self._references:
            found: Reference | bytes | None = reference_of(task)
            if found is None:
                job = self.build.submit(build_object, task.default(task.func), task.target)
                found = job.result()
            self._references[task.workload] = found

    def _run(
        self,
        built: Future[bytes],
        key: tuple[str, str],
        task: Task,
        outcome: Future[Measured],
        best: float,
        final: bool,
    ) -> None:
        """When a candidate is built: sends it to a board, or says why it could not be built."""
        try:
            code = built.result()
        except WorkerTimeout as died:
            outcome.set_result(Measured("build_timeout", message=died.how))
        except WorkerDied as died:
            why = next((w for w in died.words.splitlines() if "LLVM ERROR" in w), died.words)
            outcome.set_result(_not_built(f"{died.how}: {why}"))
        except (CancelledError, BrokenExecutor) as error:
            outcome.set_exception(error)
        except MlcError as error:
            outcome.set_result(_not_built(str(error)))
        except Exception as error:  # a defect of the compiler costs this candidate alone
            outcome.set_result(_not_built(f"{type(error).__name__}: {error}"))
        else:
            self._keep(key, code)
            request = Request(
                task=task.name,
                workload=task.workload,
                object=code,
                reference=self._references[task.workload] if self.check else None,
                tensors=tensors_of(task),
                objective=self.objective,
                best=inf if final else best,
                careful=final,
                seconds=self.seconds,
                cores=self.cores,
                speed=self.speed,
            )
            try:
                self._measured(request).add_done_callback(partial(_settle, outcome=outcome))
            except Exception as error:
                outcome.set_exception(error)

    def _measured(self, request: Request) -> Future[Measured]:
        """The result of a request. Different schedules may give the same object, which is measured
        once, except for the final measurement."""
        if request.careful:
            return self.boards.submit(measure, request)
        key = request.workload, blake2b(request.object, digest_size=16).digest()
        with self._lock:
            if key not in self._ran:
                self._ran[key] = self.boards.submit(measure, request)
                if len(self._ran) > REMEMBERED:
                    del self._ran[next(iter(self._ran))]
            return self._ran[key]


def _not_built(message: str) -> Measured:
    return Measured("build_error", message=message[:MESSAGE])


def _settle(ran: Future[Measured], outcome: Future[Measured]) -> None:
    try:
        outcome.set_result(ran.result())
    except BoardLost as error:
        outcome.set_result(Measured("crash", message=str(error)[:MESSAGE]))
    except (Exception, CancelledError) as error:
        outcome.set_exception(error)
