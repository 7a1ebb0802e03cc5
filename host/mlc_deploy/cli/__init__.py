"""mlc-deploy, the command line: what a user types becomes a job, and what came of it a table.

main      the commands
run       the job: compile, deploy, check, time
options   the values of options that are more than a word
place     which target, and which board
progress  what is under way, on stderr
report    what came of it, on stdout
errors    what went wrong, on stderr, and exit statuses
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    try:
        from .main import main as run  # here, since it takes a while, and may be interrupted
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    return run(argv)
