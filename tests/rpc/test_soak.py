"""Random faults for a minute: scripts/soak.py says what must hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.soak
def test_random_faults_cost_no_result_and_leave_nothing() -> None:
    command = [sys.executable, "scripts/soak.py", "--minutes", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sessions lost to a fault" in done.stdout
