"""What the tests of mlc_rpc share: the built runtime and plugin, which the package knows not of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_deploy import runtime_files


@pytest.fixture(scope="session")
def count_plugin() -> Path:
    return runtime_files.counting_plugin()


@pytest.fixture(scope="session")
def runtime_of() -> Callable[[str], Path]:
    return runtime_files.runtime_file
