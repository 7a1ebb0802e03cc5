from __future__ import annotations

from tests.cli.conftest import mlc_deploy, with_a_share_of_the_cores
from tests.report.conftest import chromium

__all__ = ["chromium", "mlc_deploy", "with_a_share_of_the_cores"]  # fixtures
