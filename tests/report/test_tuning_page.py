"""Pages of tunings."""

from __future__ import annotations

from mlc_deploy.report import Plan, Task, Trial, tuning_page
from tests.report.test_page import HOSTILE, Reader

COSTS = (None, 5e-3, 4e-3, None, 6e-3, 1e-3, 9.0)
TRIALS = [Trial("crash" if cost is None else "ok", cost) for cost in COSTS]


def test_best_against_trials() -> None:
    tasks = [
        Task("conv2d", "llvm -mcpu=cortex-a72", "pi", "seconds", TRIALS),
        Task("dense", "llvm -mcpu=cortex-a72", "pi", "seconds", [Trial("wrong", None)]),
        Task("conv2d", "llvm", "emulated", "instructions", [Trial("ok", 12_345.0)]),
    ]
    page = tuning_page("t.jsonl", tasks, [Plan("net", "pi", "seconds", 12, 0.25)], ["a note"])
    read = Reader(page)
    told = " ".join(read.texts)
    sections = [a["id"] for tag, a in read.elements if tag == "section"]
    assert sections == ["summary", "board-0", "board-1", "layouts", "notes"]
    for text in ("ok 6, crash 2, wrong 1", "80.0 %", "5 ms", "1 ms", "12,345", "250 ms", "a note"):
        assert text in told, text
    drawings = [a["aria-label"] for tag, a in read.elements if tag == "svg"]
    assert drawings == ["conv2d: the best cost after each trial"] * 2  # wide and narrow
    assert told.count("Without a drawing, for they have fewer trials: 1.") == 2
    curves = [a["d"] or "" for tag, a in read.elements if a.get("class") == "curve"]
    assert [d.count("V") for d in curves] == [2, 2]  # the best fell twice


def test_names_are_text() -> None:
    tasks = [Task(f"a{HOSTILE}", HOSTILE, HOSTILE, "seconds", TRIALS)]
    page = tuning_page(HOSTILE, tasks, [Plan(HOSTILE, HOSTILE, "seconds", 1, 1.0)], [HOSTILE])
    Reader(page)
    assert "<img" not in page


def test_many_trials_are_thinned_out() -> None:
    trials = [Trial("ok", 1.0 + n % 7) for n in range(20_000)]
    tasks = [Task(f"k{n}", "llvm", "b", "seconds", trials) for n in range(12)]
    assert len(tuning_page("t", tasks, [])) < 1_000_000
