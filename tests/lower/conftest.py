from tests.sessions import armv7, local

__all__ = ["armv7", "local"]
