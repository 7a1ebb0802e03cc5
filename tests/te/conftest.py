"""The boards that these tests run on."""

from tests.sessions import aarch64, armv7, local

__all__ = ["aarch64", "armv7", "local"]
