from tests.cli.conftest import folder, mlc_deploy

__all__ = ["folder", "mlc_deploy"]
