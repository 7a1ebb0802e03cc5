from tests.sessions import local

__all__ = ["local"]
