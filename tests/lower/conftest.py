from tests.sessions import aarch64, armv7, armv7_scalar, local

__all__ = ["aarch64", "armv7", "armv7_scalar", "local"]
