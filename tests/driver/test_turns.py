"""Layers in loops: their figures are of all turns, and table, record, page and timeline say so."""

from __future__ import annotations

import io
import json
import re

import numpy as np

import mlc_deploy as mlc
from mlc_deploy.cli.report import show
from mlc_deploy.report.page import run_page
from mlc_deploy.report.record import read_run
from mlc_deploy.report.trace import run_trace
from tests.driver.test_stops import STEPS, WIDTH, X, looped, recurrent

GIVEN = {"x": X, "begin": np.zeros((1, WIDTH), np.float32)}


def test_instructions_are_those_of_all_turns() -> None:
    with mlc.connect("qemu://cortex-a72") as board:
        whole, half = (
            mlc.deploy(recurrent("aarch64", turns), board, GIVEN | {"x": X[:turns]})
            for turns in (STEPS, STEPS // 2)
        )
    assert whole.ok and half.ok
    turning = [layer for layer in whole.layers if layer.turns == STEPS]
    before = {layer.name: layer.instructions for layer in half.layers if layer.turns == STEPS // 2}
    assert turning and {layer.name for layer in turning} == before.keys()
    for layer in turning:
        halved = before[layer.name]
        assert halved and layer.instructions == 2 * halved, layer
    assert whole.instructions == sum(layer.instructions or 0 for layer in whole.layers)


def test_turns_are_said() -> None:
    model = recurrent("host")
    name, text = looped(model), io.StringIO()
    with mlc.connect("local://") as board:
        record = mlc.deploy(model, board, GIVEN, spans=True).record("recurrent")
    (layer,) = (layer for layer in record["layers"] if layer["name"] == name)
    assert layer["turns"] == STEPS and layer["median_us"] > 0
    show(record, text)
    (row,) = (line for line in text.getvalue().splitlines() if line.strip().startswith(name))
    assert re.match(rf" {re.escape(name)} +\S+ +1x{WIDTH} +{STEPS} ", row), row
    run = read_run(json.dumps(record), "recurrent")
    assert f" · {STEPS} iterations" in run_page(run)
    events = json.loads(run_trace(run))["traceEvents"]
    assert [e["args"]["turns"] for e in events if e["name"] == name] == [STEPS] * STEPS
