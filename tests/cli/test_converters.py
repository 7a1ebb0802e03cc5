"""--converters FILE.py: operators that the user brings, and files that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx

from tests.cli.command import Command
from tests.frontend.test_onnx_refusals import unsupported

GOOD = """
import mlc_deploy as mlc


def fancy(node):
    return node.emit("multiply", node.input(0), node.constant(3, node.dtype()))


CONVERTERS = {"com.acme::Fancy": fancy, "Multinomial": lambda node: node.input(0)}
"""


def test_operators_of_the_users(mlc_deploy: Command, folder: Path) -> None:
    onnx.save(unsupported(), "fancy.onnx")
    Path("own.py").write_text(GOOD)
    assert "2 operators are not supported" in mlc_deploy("fancy.onnx").complaint
    ended = mlc_deploy("fancy.onnx", "--converters", "own.py", "--board", "local://", "--json", "-")
    assert ended.status == 0 and ended.record["ok"]
    assert mlc_deploy("inspect", "fancy.onnx", "--converters", "own.py").status == 0


def test_refusals(mlc_deploy: Command, folder: Path, golden: Callable[..., None]) -> None:
    onnx.save(unsupported(), "fancy.onnx")
    files = {
        "missing.py": None,
        "syntax.py": "CONVERTERS = {",
        "raises.py": "\n\nimport no_such_module_here",
        "empty.py": "x = 1",
        "list.py": "CONVERTERS = []",
        "types.py": "CONVERTERS = {int: print}",
        "values.py": "CONVERTERS = {'Multinomial': 3}",
    }
    said = []
    for name, text in files.items():
        if text is not None:
            Path(name).write_text(text)
        said.append(mlc_deploy("fancy.onnx", "--converters", name).complaint)
    golden("\n\n".join(said), "converters_refusals")
