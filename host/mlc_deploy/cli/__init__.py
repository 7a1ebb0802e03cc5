"""mlc-deploy, the command line: what a user types becomes a job, and what came of it a table.

main      the commands
run       the job: compile, deploy, check, time
options   the values of options that are more than a word
place     which target, and which board
progress  what is under way, on stderr
report    what came of it, on stdout
errors    what went wrong, on stderr, and exit statuses
"""

from .main import main

__all__ = ["main"]
