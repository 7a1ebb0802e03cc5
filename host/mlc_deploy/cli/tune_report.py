"""The result of tuning: its record, and tables of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.table import Table

from mlc_targets import Target

from .tables import Record, add_row, console_for, line, plain_table, print_facts

if TYPE_CHECKING:
    from ..driver.deployment import Deployment
    from ..tune.api import TunedModel
    from ..tune.boards import Incident
    from ..tune.scheduler import Progress as Standing
    from ..tune.tune import State

MOST_INCIDENTS = 12  # kinds
SLOWER = 1.02  # times the untuned model's cost: a tuned model above it gives a warning
OBJECTIVES = {
    "seconds": "seconds",
    "predicted": "predicted seconds, not measured",
    "instructions": "executed instructions, emulated",
}
UNITS = {  # of costs in tables, and of a kernel's speed
    "seconds": ("µs", "GFLOP/s"),
    "predicted": ("predicted µs", "GFLOP/s"),
    "instructions": ("instr", "per mac"),
}
TRANSFORM = "layout_transform"  # the prefix of its kernels' names


def recorded(
    state: State,
    tuned: TunedModel | None,
    done: tuple[Deployment, Deployment] | None,
    incidents: Sequence[Incident],
    name: str,
    target: Target,
    urls: Sequence[str],
) -> Record:
    """The record of a run, ready for JSON. Costs are seconds, predicted seconds or instructions, as
    `objective` says; null if unknown. tuned: None if the run was stopped."""
    counts = Counter(incident_text(i) for i in incidents)
    record: Record = {
        "model": name,
        "target": str(target),
        "boards": list(urls),
        "objective": state.objective,
        "trials": state.told,
        "trials_asked": state.trials,
        "tuning_s": state.seconds,
        "thinking_s": state.thinking,
        "late": state.late,
        "results": dict(sorted(state.bad.items())),
        "doubts": list(state.doubts),
        "incidents": [{"what": what, "times": times} for what, times in counts.items()],
        "tasks": [task_record(t, state.objective) for t in state.tasks],
        "plans": [
            {"title": p.title, "layouts": dict(p.layouts), "cost": cost if isfinite(cost) else None}
            for p, cost in (tuned.plans if tuned else ())
        ],
        "layers": None,
        "before": None,
        "after": None,
        "ok": None,
    }
    if done is not None:
        before, after = done
        record["layers"] = _layers(before, after, state.objective)
        record |= {"before": _total(before, state), "after": _total(after, state)}
        record["ok"] = before.ok and after.ok
        if record["before"] and record["after"] and record["after"] > SLOWER * record["before"]:
            record["doubts"].append(
                f"the tuned model is slower than the untuned one (timings: {before.timing.verdict} "
                f"untuned, {after.timing.verdict} tuned); try: more trials, when nothing else runs "
                "on the board"
            )
    return record


def _layers(before: Deployment, after: Deployment, objective: str) -> list[Record]:
    """The calls of both models in pairs; calls of equal names pair in order. Layout transforms have
    their layer's name and may be in one model only."""
    found: dict[tuple[str, bool, int], Record] = {}
    for key, done in (("after", after), ("before", before)):
        seen: Counter[tuple[str, bool]] = Counter()
        for layer, cost in zip(done.layers, _costs(done, objective), strict=True):
            call = layer.name, layer.kernel.startswith(TRANSFORM)
            seen[call] += 1
            nothing = {"name": layer.name, "kernel": layer.kernel, "before": None, "after": None}
            found.setdefault((*call, seen[call]), nothing)[key] = cost
    return list(found.values())


def _costs(done: Deployment, objective: str) -> Sequence[float | None]:
    """The costs of the layers, by the objective."""
    match objective:
        case "instructions":
            return [layer.instructions for layer in done.layers]
        case "predicted":
            foreseen = done.forecast
            if foreseen is None:
                return [None] * len(done.layers)
            return [ms / 1e3 for ms in foreseen.one.layers]
    return [None if (us := layer.median_us) is None else us / 1e6 for layer in done.layers]


def _total(done: Deployment, state: State) -> float | None:
    match state.objective:
        case "instructions":
            return done.instructions
        case "predicted":
            return done.forecast.one.ms / 1e3 if done.forecast else None
    return done.timing.median


def task_record(t: Standing, objective: str) -> Record:
    best = min(t.best, t.baseline)
    known = isfinite(best)
    rate = None
    if known and t.task.flops:
        timed = objective != "instructions"
        rate = t.task.flops / best / 1e9 if timed else best / (t.task.flops / 8)
    return {
        "name": t.task.name,
        "calls": t.task.weight,
        "trials": t.trials,
        "before": t.baseline if isfinite(t.baseline) else None,
        "after": best if known else None,
        "instructions_per_vector_mac" if objective == "instructions" else "gflops": rate,
        "done": t.done,
    }


# ---------------------------------------------------------------------------------- for people


def show(record: Record, stream: Any) -> None:
    """Prints the record: every task and layer, the sum, the whole model, and incidents."""
    console = console_for(stream)
    target = Target(record["target"]).short_name
    title = f"{record['model']} for {target}, tuned on {', '.join(record['boards'])}"
    console.print(line(title, "bold", short=True))
    console.print()
    console.print(_tasks_table(record))
    console.print()
    if record["layers"] is not None:
        console.print(_layers_table(record))
        console.print()
    print_facts(console, _facts(record))


def task_columns(objective: str) -> tuple[tuple[str, bool], ...]:
    unit, rate = UNITS[objective]
    return (
        ("kernel", False),
        (f"default {unit}", True),
        ("best", True),
        ("gain", True),
        (rate, True),
    )


def task_cells(task: Record) -> tuple[str, str, str, str]:
    before, after = task["before"], task["after"]
    rate = task.get("gflops", task.get("instructions_per_vector_mac"))
    counted = "gflops" not in task
    return (
        _cost(before, counted),
        _cost(after, counted),
        _ratio(before, after),
        f"{rate:.2f}" if rate else "",
    )


def _cost(cost: float | None, counted: bool) -> str:
    if cost is None:
        return "none"
    return f"{cost:,.0f}" if counted else f"{cost * 1e6:,.1f}"


def _tasks_table(record: Record) -> Table:
    table = plain_table(*task_columns(record["objective"]), ("trials", True), ("calls", True))
    for task in record["tasks"]:
        add_row(table, task["name"], *task_cells(task), f"{task['trials']}", f"{task['calls']}")
    return table


def _layers_table(record: Record) -> Table:
    counted = record["objective"] == "instructions"
    unit, _ = UNITS[record["objective"]]
    table = plain_table(
        ("layer", False), ("kernel", False), (f"before {unit}", True), ("after", True),
        ("gain", True),
    )  # fmt: skip
    for layer in record["layers"]:
        before, after = layer["before"], layer["after"]
        costs = _cost(before, counted), _cost(after, counted)
        add_row(table, layer["name"], layer["kernel"], *costs, _ratio(before, after))
    sums = [sum(x[key] or 0 for x in record["layers"]) for key in ("before", "after")]
    add_row(table, "sum", "", *(_cost(n, counted) for n in sums), _ratio(*sums), style="bold")
    whole = record["before"], record["after"]
    add_row(
        table, "end to end", "", *(_cost(n, counted) for n in whole), _ratio(*whole), style="bold"
    )
    return table


def _ratio(before: float | None, after: float | None) -> str:
    return f"{before / after:.3f}x" if before and after else ""


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    if record["stopped"]:
        stopped = "; stopped, the same command continues"
    elif record["trials"] < record["trials_asked"]:
        done = {task["done"] for task in record["tasks"] if task["done"]}
        stopped = f"; {'time was up' if record['late'] else ', '.join(sorted(done))}"
    else:
        stopped = ""
    yield (
        "tuned",
        f"{record['trials']} of {record['trials_asked']} trials in "
        f"{clock_text(record['tuning_s'])}, {record['measured']} measured{stopped}",
    )
    counted = record["objective"] == "instructions"
    yield "objective", f"{OBJECTIVES[record['objective']]}, on {record['board']}"
    for plan in record["plans"] if len(record["plans"]) > 1 else ():
        yield "layouts", f"{plan['title']}: {_cost(plan['cost'], counted)}"
    if record["results"]:
        texts = (
            f"{count} {verdict.replace('_', ' ')}" for verdict, count in record["results"].items()
        )
        yield "failed", ", ".join(texts)
    for doubt in record["doubts"]:
        yield "warning", doubt
    for incident in record["incidents"][:MOST_INCIDENTS]:
        times = f", {incident['times']} times" if incident["times"] > 1 else ""
        yield "incident", f"{incident['what']}{times}"
    if (more := len(record["incidents"]) - MOST_INCIDENTS) > 0:
        yield "incident", f"and {more} of other kinds; --json has them"
    if record["ok"] is False:
        yield "outputs", f"WRONG: {record['command']} says where"
    yield "database", f"{record['db']}: {record['command']} compiles with it"


def clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def incident_text(incident: Incident) -> str:
    of = f" ({incident.task})" if incident.task else ""
    return f"{incident.board}: {incident.what}{of}"
