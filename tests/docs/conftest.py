from __future__ import annotations

from tests.cli.conftest import mlc_deploy, with_a_share_of_the_cores

__all__ = ["mlc_deploy", "with_a_share_of_the_cores"]  # fixtures
