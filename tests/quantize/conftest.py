"""The fixtures of the command line's tests."""

from __future__ import annotations

from tests.cli.conftest import folder, mlc_deploy

__all__ = ["folder", "mlc_deploy"]
