"""tvm.autotvm: logs that nobody here wrote are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlc_deploy.errors import InputError
from mlc_deploy.tvm import autotvm

GOOD = {"key": "k", "error": 0, "costs": [1.0], "config": {"tile": [2, 4], "unroll": 1}}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('["llvm", ["task", []], {"i": 1}]', "the file is a list, and must be an object"),
        ("{", "Expecting property name"),
        ("\xff", "Expecting value"),
        ('{"a":' * 100_000, "nested too deeply"),
        (json.dumps(GOOD | {"costs": [1e40]}), r"costs\[0\] is 1e\+40, and must be a number"),
        (json.dumps(GOOD | {"costs": None}), "costs is null, and must be a list"),
        (json.dumps(GOOD | {"key": 1}), "key is 1, and must be a text"),
        (json.dumps(GOOD | {"config": {"tile": ["x"]}}), r"config.tile\[0\] is a text"),
    ],
)
def test_logs_of_others_are_refused(line: str, why: str, tmp_path: Path) -> None:
    log = tmp_path / "tune.log"
    log.write_text(json.dumps(GOOD) + "\n" + line + "\n")
    with pytest.raises(InputError, match=why) as caught, autotvm.apply_history_best(log):
        pass
    assert str(caught.value).startswith("line 2 of tune.log is not a record of a tuner here: ")


def test_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "tune.log"
    slow = GOOD | {"costs": [2.0], "config": {"tile": [8, 1], "unroll": 0}}
    log.write_text(json.dumps(GOOD) + "\n" + json.dumps(slow) + "\n")
    with autotvm.apply_history_best(log):
        assert autotvm._best.get() == {"k": {"tile": [2, 4], "unroll": 1}}
