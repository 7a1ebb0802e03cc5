from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Command


@pytest.fixture
def mlc_deploy(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one, so that messages name files without it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def with_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that give way would wait for long where other programs have all cores."""
    monkeypatch.setattr("mlc_deploy.driver.workers.GENTLE", 1)
