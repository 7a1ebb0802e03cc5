"""The command in this process: what it printed, and how it ended."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlc_deploy.cli.main import main

MODELS = Path(__file__).parents[2] / "host" / "mlc_deploy" / "models"


@dataclass(frozen=True)
class Ended:
    status: int
    stdout: str
    stderr: str

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    @property
    def complaint(self) -> str:
        """What stands on stderr after the stages, with the exit status."""
        assert "Traceback" not in self.stderr
        lines = [
            line
            for line in self.stderr.splitlines()
            if not re.fullmatch(r"[a-z]+ +\d+(\.\d\d s| of \d+ .*)", line)  # slow ones say more
        ]
        return "\n".join([*lines, f"-> {self.status}"])


@dataclass(frozen=True)
class Command:
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *args: str | Path) -> Ended:
        self.capsys.readouterr()
        status = main([str(arg) for arg in args])
        printed = self.capsys.readouterr()
        return Ended(status, printed.out, printed.err)
