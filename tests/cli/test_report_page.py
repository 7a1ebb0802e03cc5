"""`mlc-deploy report`, and --report and --trace of a run, as users type them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_deploy.tuned import Database
from tests.cli.command import MODELS, Command
from tests.report.databases import tuned
from tests.report.records import record
from tests.report.test_page import PARTS, Reader

Golden = Callable[..., None]


def parts_of(page: Path) -> list[str | None]:
    read = Reader(page.read_text(encoding="utf-8"))
    return [attrs["id"] for tag, attrs in read.elements if tag == "section"]


def test_a_run_with_its_page_and_timeline(mlc_deploy: Command, folder: Path) -> None:
    files = ("--report", "r.html", "--trace", "t.json", "--json", "r.json")
    ended = mlc_deploy(MODELS / "digits_mlp.onnx", "--board", "local://", *files)
    assert ended.status == 0
    assert parts_of(Path("r.html"))[:8] == list(PARTS)
    found = json.loads(Path("r.json").read_text())
    assert set(found["details"]["kernels"]) == {layer["kernel"] for layer in found["layers"]}
    assert [s["name"] for s in found["steps"]][:3] == ["read", "connect", "compile"]
    latency = found["latency"]
    order = [latency[key] for key in ("p50_ms", "p90_ms", "p95_ms", "p99_ms")]
    assert order == sorted(order) and order[-1] <= max(latency["samples"])
    assert latency["first_ms"] > 0
    memory = found["memory"]
    assert 0 < memory["alive_mean_bytes"] <= memory["alive_peak_bytes"] <= found["arena_bytes"]
    assert memory["resident_peak_bytes"] >= memory["resident_mean_bytes"] > 0
    trace = json.loads(Path("t.json").read_text())
    drawn = {
        (e["tid"], e["name"]) for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 2
    }
    assert {name for _, name in drawn} == {layer["name"] for layer in found["layers"]}
    assert {thread for thread, _ in drawn} <= set(range(found["threads"]))
    assert len(found["spans"]) >= len(found["layers"])

    again = mlc_deploy("report", "r.json", "-o", "again.html", "--trace", "again.json")
    assert (again.status, again.stdout, again.stderr) == (0, "", "")
    assert Path("again.html").read_bytes() == Path("r.html").read_bytes()
    assert Path("again.json").read_bytes() == Path("t.json").read_bytes()


def test_a_plain_record_stays_small(mlc_deploy: Command, folder: Path) -> None:
    ended = mlc_deploy(MODELS / "digits_mlp.onnx", "--board", "none", "--json", "r.json")
    assert ended.status == 0 and "details" not in json.loads(Path("r.json").read_text())
    assert Path("r.json").stat().st_size < 5_000
    assert mlc_deploy("report", "r.json").status == 0
    assert "missing" in parts_of(Path("report.html"))


def test_before_and_after(mlc_deploy: Command, folder: Path) -> None:
    Path("before.json").write_text(json.dumps(record()))
    Path("after.json").write_text(json.dumps(record() | {"model": "another"}))
    assert mlc_deploy("report", "before.json", "after.json", "-o", "two.html").status == 0
    assert "change" in parts_of(Path("two.html"))
    assert "<title>another on" in Path("two.html").read_text()


def test_a_timeline_alone(mlc_deploy: Command, folder: Path) -> None:
    Path("r.json").write_text(json.dumps(record()))
    assert mlc_deploy("report", "r.json", "--trace", "t.json").status == 0
    assert Path("t.json").exists() and not Path("report.html").exists()


def test_a_tuning(mlc_deploy: Command, folder: Path) -> None:
    database = Database("t.jsonl")
    costs = (4e-3, 0, 3e-3, 5e-3, 2e-3)
    database.add([tuned(cost, n) for n, cost in enumerate(costs)])
    database.add([tuned(1e-3, 0, "emulated"), tuned(2.1e-3, 4, final=True)])
    assert mlc_deploy("report", "t.jsonl", "-o", "t.html").status == 0
    page = Path("t.html").read_text()
    assert parts_of(Path("t.html")) == ["summary", "board-0", "board-1"]
    told = " ".join(Reader(page).texts)
    assert "ok 5, crash 1" in told and "50.0 %" in told  # what was measured again is no trial


def test_refusals(mlc_deploy: Command, folder: Path, golden: Golden) -> None:
    whole = json.dumps(record())
    Path("r.json").write_text(whole)
    Path("half.json").write_text(whole[: len(whole) // 2])
    Path("other.json").write_text('{"a": 1}')
    Path("later.json").write_text(json.dumps(record() | {"record": 9}))
    Path("tune.json").write_text(json.dumps({"model": "m", "tasks": [], "db": "t.jsonl"}))
    Database("t.jsonl").before("a run")
    Database("full.jsonl").add([tuned(1e-3, 0)])
    Path("damaged.jsonl").write_text('{"check": "00", "v": 1}\n')
    calls: tuple[tuple[str, ...], ...] = (
        ("gone.json",),
        ("half.json",),
        ("other.json",),
        ("later.json",),
        ("r.json", "half.json"),
        ("r.json", "r.json", "r.json"),
        ("r.json", "-o", "r.json"),
        ("r.json", "-o", "nowhere/r.html"),
        ("r.json", "--trace", "r.json"),
        ("tune.json",),
        ("t.jsonl",),
        ("damaged.jsonl",),
        ("r.json", "full.jsonl"),
        ("full.jsonl", "--trace", "t.json"),
    )
    texts = [f"$ report {' '.join(c)}\n{mlc_deploy('report', *c).complaint}" for c in calls]
    model = str(MODELS / "digits_mlp.onnx")
    runs: tuple[tuple[str, ...], ...] = (
        ("--report", "nowhere/r.html"),
        ("--report", "x", "--trace", "x"),
        ("--report", "x", "--json", "x"),
        ("--report", "r.html", "--emit", "asm"),
    )
    texts += [f"$ {' '.join(c)}\n{mlc_deploy(model, *c).complaint}" for c in runs]
    golden("\n\n".join(texts), "cli_report_page_refusals")
    assert not Path("report.html").exists()


@pytest.mark.parametrize("option", ["--report", "--trace"])
def test_a_record_that_is_overwritten(option: str, mlc_deploy: Command, folder: Path) -> None:
    """Not even the database of tuning is."""
    Database("t.jsonl").add([tuned(1e-3, 0)])
    before = Path("t.jsonl").read_bytes()
    ended = mlc_deploy(MODELS / "digits_mlp.onnx", "--db", "t.jsonl", option, "t.jsonl")
    assert ended.status == 2 and Path("t.jsonl").read_bytes() == before
