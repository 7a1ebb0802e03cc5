"""mlc-deploy, the command line: what a user types becomes a job, and what came of it a table.

signals   what a signal does from the first line on
ending    how the process ends: of itself, or by a signal at any moment
main      the commands
run       the job: compile, deploy, check, time
options   the values of options that are more than a word
place     which target, and which board
progress  what is under way, on stderr
report    what came of it, on stdout
errors    what went wrong, on stderr, and exit statuses
"""

import os

__all__ = ["main"]


def main() -> None:
    """The process `mlc-deploy`, which ends here."""
    try:
        from .signals import catch_signals

        catch_signals()
    except KeyboardInterrupt:
        os.write(2, b"error: interrupted\n")
        os._exit(130)
    from .ending import end_with  # these take a while
    from .main import main as run

    end_with(run)
