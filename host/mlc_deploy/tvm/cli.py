"""python -m mlc_deploy.tvm run SCRIPT [ARGUMENT …], and check SCRIPT."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import MlcError
from . import alias
from .check import check


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mlc_deploy.tvm", description="Run and check scripts written for TVM."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run a script in which `import tvm` means mlc_deploy")
    running.add_argument("script", help="the Python file")
    running.add_argument("rest", nargs=argparse.REMAINDER, help="the script's own arguments")
    checking = commands.add_parser("check", help="say which names a script uses that are missing")
    checking.add_argument("script", help="the Python file")
    given = parser.parse_args(argv)
    path = Path(given.script)
    if not path.is_file():
        print(f"there is no file {path}", file=sys.stderr)
        return 2
    if given.command == "check":
        return report(path)
    alias.install()
    sys.argv = [given.script, *given.rest]
    sys.path.insert(0, str(path.parent))
    try:
        runpy.run_path(given.script, run_name="__main__")
    except MlcError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def report(path: Path) -> int:
    """Prints what a script uses that is missing. Returns 1 if something is."""
    try:
        found = check(path.read_text())
    except SyntaxError as error:
        print(f"{path}:{error.lineno}: this is not Python: {error.msg}", file=sys.stderr)
        return 2
    for missing in found:
        print(f"{path}:{missing.line}: {missing.what}\n  try: {missing.mend}")
    if not found:
        print(f"{path}: every name of TVM's that it uses exists")
    return 1 if found else 0
