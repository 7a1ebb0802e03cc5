"""The page of a tuning: the trials of each kernel on each board, and how the best cost improved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from .costs import grouped, percent
from .markup import Html, h, join
from .page import Part, page
from .record import duration
from .svg import Frame, Scale, axes, both, drawing, steps

MOST_CHARTS = 60  # of the tasks with most trials
MOST_MARKS = 400  # in a chart: of more trials, every n-th is drawn
MOST_COST = 2.0  # times the first cost: higher costs are drawn at the upper edge

WORDS = {
    "seconds": "seconds",
    "predicted": "predicted seconds (no board has measured them)",
    "instructions": "executed instructions",
}


def cost_text(cost: float, objective: str) -> str:
    return grouped(cost) if objective == "instructions" else duration(cost * 1e6)


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a schedule: a verdict, and its cost; None if it is invalid."""

    verdict: str
    cost: float | None


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel on a board, with its trials in their order. `objective`: one of WORDS."""

    name: str
    target: str
    board: str
    objective: str
    trials: Sequence[Trial]

    @property
    def costs(self) -> list[float]:
        return [t.cost for t in self.trials if t.cost is not None]

    @property
    def first(self) -> float | None:
        return next(iter(self.costs), None)

    @property
    def best(self) -> float | None:
        return min(self.costs, default=None)

    def text(self, cost: float | None) -> str:
        if cost is None:
            return "–"
        return cost_text(cost, self.objective)


@dataclass(frozen=True, slots=True)
class Plan:
    """Layouts of a whole model, and the total cost of its kernels with them."""

    model: str
    board: str
    objective: str
    layers: int
    cost: float


def tuning_page(
    name: str, tasks: Sequence[Task], plans: Sequence[Plan], notes: Sequence[str] = ()
) -> str:
    """The page of a database's content. Raises ReportError if it would be too large."""
    boards = list(dict.fromkeys((t.board, t.target, t.objective) for t in tasks))
    parts = [Part("summary", "Summary", _summary(tasks, boards))]
    several = [t for t in tasks if len(t.trials) > 1]
    shown = {id(t) for t in sorted(several, key=lambda t: -len(t.trials))[:MOST_CHARTS]}
    for number, (board, target, objective) in enumerate(boards):
        own = [t for t in tasks if (t.board, t.target, t.objective) == (board, target, objective)]
        parts.append(Part(f"board-{number}", board, _board(own, target, objective, shown)))
    if plans:
        parts.append(Part("layouts", "Layouts", _plans(plans)))
    if notes:
        parts.append(Part("notes", "Notes", h("ul", (h("li", note) for note in notes))))
    return page(f"Tuning in {name}", "best cost against trials, for each kernel and board", parts)


def _summary(tasks: Sequence[Task], boards: Sequence[object]) -> Html:
    trials = sum(len(t.trials) for t in tasks)
    good = sum(len(t.costs) for t in tasks)
    rows = [
        ("trials", grouped(trials), f"{grouped(good)} with a cost"),
        ("kernels", grouped(len({t.name for t in tasks})), "by their names"),
        ("boards", grouped(len(boards)), "with their targets and objectives"),
    ]
    verdicts = Counter(trial.verdict for t in tasks for trial in t.trials)
    return join(
        h("dl", (h("div", h("dt", label), h("dd", value), h("dd", note, class_="small"))
                 for label, value, note in rows), class_="tiles"),
        h("p", "What came of the trials: ", ", ".join(
            f"{word.replace('_', ' ')} {grouped(n)}" for word, n in verdicts.most_common()), ".")
        if verdicts else h("p", "The database holds no trial yet.", class_="missing"),
    )  # fmt: skip


def _board(tasks: Sequence[Task], target: str, objective: str, shown: set[int]) -> Html:
    ranked = sorted(tasks, key=lambda t: -(t.best or 0.0))
    drawn = [t for t in ranked if id(t) in shown]
    left = len(ranked) - len(drawn)
    return join(
        h("p", f"Costs are {WORDS.get(objective, objective)} of one call. Target: ",
          h("code", target), class_="note"),
        h("div",
          h("table",
            h("thead", h("tr", h("th", "kernel"), h("th", "trials", class_="number"),
                         h("th", "failed", class_="number"), h("th", "first", class_="number"),
                         h("th", "best", class_="number"), h("th", "saved", class_="number"))),
            h("tbody", (_row(t) for t in ranked))),
          class_="scroll"),
        (h("div", h("h3", t.name), both(partial(_drawn, t=t)), class_="task")
         for t in drawn),
        h("p", f"Without a drawing, for they have fewer trials: {left}.", class_="note")
        if left else None,
    )  # fmt: skip


def _row(t: Task) -> Html:
    first, best = t.first, t.best
    saved = "–" if not first or best is None else percent(1 - best / first)
    cells = (
        f"{len(t.trials)}",
        f"{len(t.trials) - len(t.costs)}",
        t.text(first),
        t.text(best),
        saved,
    )
    return h("tr", h("td", t.name), (h("td", cell, class_="number") for cell in cells))


def _drawn(width: float, t: Task) -> Html:
    frame = Frame(width, 230 if width > 600 else 210, left=78)
    costs = t.costs
    low = min(costs, default=0.0)
    high = min(max(costs, default=1.0), MOST_COST * (t.first or 1.0))
    room = (high - low) * 0.1 or high * 0.1 or 1.0
    x, y = frame.x(0, max(len(t.trials), 1)), frame.y(max(low - room, 0.0), high + room)
    return drawing(
        frame,
        f"{t.name}: the best cost after each trial",
        axes(frame, x, y, "trial", "cost of a call", lambda v: f"{v:.0f}" if v == int(v) else "",
             t.text),
        h("g", _marks(t, x, y, high)),
        h("path", d=steps(list(_best(t, x, y, high)), x(len(t.trials))), class_="curve"),
    )  # fmt: skip


def _best(t: Task, x: Scale, y: Scale, high: float) -> Iterator[tuple[float, float]]:
    """The points where the best cost changes."""
    best: float | None = None
    for number, trial in enumerate(t.trials):
        if trial.cost is not None and (best is None or trial.cost < best):
            best = trial.cost
            yield x(number + 1), y(min(best, high))


def _marks(t: Task, x: Scale, y: Scale, high: float) -> Iterator[Html]:
    """A dot for each trial with a cost, a cross at the upper edge for each without."""
    every = -(-len(t.trials) // MOST_MARKS)
    for number in range(0, len(t.trials), max(every, 1)):
        trial = t.trials[number]
        at = x(number + 1)
        if trial.cost is not None:
            yield h("circle", cx=at, cy=y(min(trial.cost, high)), r=2.4, class_="tried")
        else:
            yield h("path", d=f"M{at - 3:.1f} {y.end:.1f}l6 6m0 -6l-6 6", class_="failed")


def _plans(plans: Sequence[Plan]) -> Html:
    return h(
        "div",
        h("table",
          h("thead", h("tr", h("th", "model"), h("th", "board"),
                       h("th", "layers with a layout of their own", class_="number"),
                       h("th", "cost of all kernels", class_="number"))),
          h("tbody", (
              h("tr", h("td", p.model), h("td", p.board), h("td", f"{p.layers}", class_="number"),
                h("td", cost_text(p.cost, p.objective), class_="number"))
              for p in plans))),
        class_="scroll",
    )  # fmt: skip
