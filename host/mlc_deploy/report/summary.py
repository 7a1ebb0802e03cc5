"""The top of a page: the figures, whether outputs are right, whether times can be trusted, and the
board."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .costs import grouped, percent
from .markup import Html, h, join
from .record import Output, Run, count, duration, shape_text, size

WORDS = {
    "ok": "The times can be trusted.",
    "noisy": "The samples do not agree with each other.",
    "throttled": "The clock was held down, or did not stay where it was.",
    "migrated": "The work did not stay on cores of one kind.",
    "emulated": "An emulator ran the model: its times are not those of a board.",
}
LONG = 44  # characters that fit into a column of the board's table
AGAINST = {"evaluate": "the reference that numpy computes", "given": "what was given"}
SENSED: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "joules_per_run": ("energy per run", lambda v: f"{v * 1e3:.3g} mJ" if v < 1 else f"{v:.3g} J"),
    "watts": ("power", lambda v: f"{v:.3g} W"),
}


def figures(run: Run) -> Html:
    """The most important numbers, large."""
    return h(
        "dl",
        (
            h("div", h("dt", label), h("dd", value), h("dd", note, class_="small"),
              class_="predicted" if "predicted" in label else None)
            for label, value, note in _figures(run)
        ),
        class_="tiles",
    )  # fmt: skip


def _figures(run: Run) -> Iterator[tuple[str, str, str]]:
    found = run.latency
    if run.timed and found is not None:
        p99 = found.percentiles.get("p99")
        more = "" if p99 is None else f"p99 {duration(p99 * 1e3)}, "
        yield "median time", duration(found.median_ms * 1e3), f"{more}{_threads(run.threads)}"
        if found.first_ms is not None:
            yield "first run", duration(found.first_ms * 1e3), "right after the upload"
    if run.prediction is not None:
        p = run.prediction
        interval = f"{duration(p.low * 1e3)} to {duration(p.high * 1e3)}"
        others = ", ".join(
            f"{n} threads {duration(ms * 1e3)}" for n, ms in p.threads.items() if n != "1"
        )
        own = f"on {p.board}, calibrated on {p.date}" if p.board else ""
        note = ", ".join(filter(None, (interval, others, own)))
        yield "predicted time", duration(p.ms * 1e3), note
    if run.instructions is not None:
        yield "executed instructions", count(run.instructions), f"{grouped(run.instructions)} a run"
    if run.ok is not None:
        worst = max((o.max_rel_err or 0.0 for o in run.outputs), default=0.0)
        note = f"largest error {worst:.2g} of the largest element"
        yield "outputs", "right" if run.ok else "WRONG", note
    if run.accuracy is not None:
        yield "accuracy", percent(run.accuracy), "of the labels that were given"
    yield "weights", size(run.weights_bytes), f"object {size(run.object_bytes)}"
    yield "arena", size(run.arena_bytes), "intermediate tensors and workspaces"
    if (peak := run.memory.get("resident_peak_bytes")) is not None:
        mean = run.memory.get("resident_mean_bytes")
        note = "" if mean is None else f"{size(mean)} on the average"
        yield "memory of the process", size(peak), note
    for key, (label, form) in SENSED.items():
        if key in run.energy:
            yield label, form(run.energy[key]), "by the board's sensor"


def _threads(threads: int | None) -> str:
    return "" if threads is None else "1 thread" if threads == 1 else f"{threads} threads"


def verdict(run: Run) -> Html:
    """Whether the outputs are right, whether the times count, and why not."""
    parts: list[Html] = []
    if run.url is None:
        parts.append(_says("none", "Not run", "The model was compiled only."))
    else:
        parts.append(_outputs(run))
        if run.latency is not None:
            word = run.latency.verdict
            parts.append(_says("good" if word == "ok" else "none" if word == "emulated" else "bad",
                               f"Times: {word}", WORDS.get(word, "")))  # fmt: skip
    if run.prediction is not None:
        parts.append(_says("none", "Predicted", "Times marked as predicted are computed from "
                           "instructions and caches; no board has measured them."))  # fmt: skip
    doubts = run.latency.findings if run.latency is not None and not run.emulated else ()
    return join(
        h("div", parts, class_="verdicts"),
        h("ul", (h("li", what, h("span", f"try: {mend}", class_="try") if mend else None)
                 for what, mend in doubts), class_="doubts") if doubts else None,
        h("ul", (h("li", f"The board was lost: {text}") for text in run.interruptions),
          class_="doubts") if run.interruptions else None,
        _table(run.outputs, run.reference) if run.outputs else None,
    )  # fmt: skip


def _outputs(run: Run) -> Html:
    if run.ok is None:
        return _says(
            "none", "Outputs: not compared", "There was no reference to compare them with."
        )
    if run.ok:
        return _says("good", "Outputs: correct", "They are within the tolerance of the reference.")
    wrong = ", ".join(o.name for o in run.outputs if o.ok is False)
    return _says("bad", "Outputs: WRONG", f"Outside the tolerance: {wrong}.")


def _says(kind: str, title: str, sentence: str) -> Html:
    sign = {"good": "✓", "bad": "✗", "none": "–"}[kind]
    return h("div", h("b", h("span", sign, aria_hidden="true", class_="sign"), title),
             h("span", sentence), class_=f"verdict {kind}")  # fmt: skip


def _table(outputs: tuple[Output, ...], reference: str | None) -> Html:
    sources = (reference or "").split(", ")
    against = " and ".join(AGAINST.get(s, s) for s in sources if s) or "nothing"
    return h(
        "details",
        h("summary", f"Outputs, compared with {against}"),
        h("div",
          h("table",
            h("thead", h("tr", h("th", "output"), h("th", "shape"), h("th", "largest error"),
                         h("th", "of the largest"), h("th", "result"))),
            h("tbody", (
                h("tr", h("td", o.name), h("td", shape_text(o.shape, o.dtype)),
                  h("td", "–" if o.max_abs_err is None else f"{o.max_abs_err:.3g}",
                    class_="number"),
                  h("td", "–" if o.max_rel_err is None else f"{o.max_rel_err:.3g}",
                    class_="number"),
                  h("td", {True: "right", False: "WRONG", None: "not compared"}[o.ok]))
                for o in outputs))),
          class_="scroll"),
    )  # fmt: skip


def board(run: Run) -> Html:
    """The board, the target and the compilation."""
    rows = dict(run.board)
    if run.latency is not None and run.latency.cores:
        cluster = f"{run.latency.cluster}, " if run.latency.cluster else ""
        numbers = ", ".join(map(str, run.latency.cores))
        rows["threads were on"] = f"{cluster}cores {numbers}"
    if run.latency is not None:
        counts = run.latency.per_run
        if counts.get("cycles") and counts.get("instructions"):
            ratio = counts["instructions"] / counts["cycles"]
            rows["instructions per cycle"] = f"{ratio:.2f}"
        if counts.get("cache_misses"):
            rows["cache misses per run"] = count(counts["cache_misses"])
    rows["target"] = run.target
    rows["precision"] = run.precision + ("" if run.level == "base" else f", level {run.level}")
    if run.compile_s is not None:
        rows["compiled in"] = duration(run.compile_s * 1e6)
    if run.upload_s is not None and run.upload_bytes is not None:
        rows["upload"] = f"{size(run.upload_bytes)} in {duration(run.upload_s * 1e6)}"
    memory = {
        "alive_peak_bytes": "arena in use, peak",
        "alive_mean_bytes": "arena in use, average",
        "resident_peak_bytes": "process memory, peak",
        "resident_mean_bytes": "process memory, average",
    }
    rows |= {label: size(run.memory[key]) for key, label in memory.items() if key in run.memory}
    return h(
        "dl",
        (
            h("div", h("dt", label), h("dd", text), class_="long" if len(text) > LONG else None)
            for label, text in rows.items()
        ),
        class_="facts",
    )
