from __future__ import annotations

from pathlib import Path

import pytest

from tests.artifact.models import digits


@pytest.fixture(scope="session")
def digits_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits for x86-64, saved."""
    return digits().save(tmp_path_factory.mktemp("artifact") / "digits.mlc")
