"""One browser per run, in the group `report`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.report.browser import PACKAGE, Browser, browser, program


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Installs Debian's package, as root; else says what to install."""
    if program() is None and os.geteuid() == 0:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", PACKAGE]
        subprocess.run(command, capture_output=True)
    if program() is None:
        pytest.skip(f"no Chromium here; try: apt install {PACKAGE}")
    with browser() as one:
        yield one
