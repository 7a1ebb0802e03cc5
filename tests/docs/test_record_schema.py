"""The JSON schema of results describes what the commands write: no field more, none less."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.command import Command

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "reference" / "record.schema.json").read_text()
)
RUNS: dict[str, Sequence[str]] = {
    "compiled": ("--board", "none", "--target", "armv7a"),
    "emulated": ("--board", "qemu://cortex-a53", "--report", "page.html"),
    "this machine": ("--board", "local://", "--trace", "trace.json"),
    "predicted": ("--target", "raspberry-pi/4b"),
    "stopped": ("--board", "local://", "--stop-after", "conv_4"),
    "quantized": ("--board", "local://", "--precision", "int8"),
}


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize("how", RUNS)
def test_results_follow_the_schema(
    how: str, mlc_deploy: Command, validator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mlc_deploy(*RUNS[how], "--json", "record.json").status == 0
    found = json.loads(Path("record.json").read_text())
    assert [f"{e.json_path}: {e.message}" for e in validator.iter_errors(found)] == []
    changed = found | {"compile_s": "fast", "surprise": 1}
    assert {e.json_path for e in validator.iter_errors(changed)} == {"$", "$.compile_s"}
