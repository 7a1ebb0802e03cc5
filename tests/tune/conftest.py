import pytest

from tests.sessions import aarch64, armv7, local

__all__ = ["aarch64", "armv7", "local"]


@pytest.fixture(autouse=True)
def with_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that give way would wait for long where other programs have all cores."""
    monkeypatch.setattr("mlc_deploy.driver.workers.GENTLE", 1)
