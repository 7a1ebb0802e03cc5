"""`mlc-deploy farm`: boards and builders that several machines and users share."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..board.enrolled import Enrolled
from ..driver.workers import cores
from ..errors import FarmError
from .errors import OK
from .groups import Group
from .help import BOARD, FARM, HELP_NAMES, OUTPUTS, Command, grouped
from .json_file import JsonFile
from .options import DEBUG, JSON_HELP, Misuse
from .place import NONE, located
from .progress import Progress
from .tables import add_row, console_for, plain_table, tell


@click.group(cls=Group, context_settings={"help_option_names": HELP_NAMES})
def farm() -> None:
    """Share boards and builders among machines and users."""


@farm.command(
    "join", cls=Command, examples=("mlc-deploy farm join tls://10.0.0.2:8786 --board kitchen",)
)
@click.argument("scheduler")
@grouped(
    BOARD, "--board", "boards", multiple=True, metavar="B",
    help="Offer this board; repeat for more boards",
)  # fmt: skip
@grouped(
    BOARD, "--builders", type=int, metavar="N",
    help="Compile on N cores of this machine (default: all; 0: none)",
)  # fmt: skip
@DEBUG
def join_command(scheduler: str, boards: tuple[str, ...], builders: int | None) -> int:
    """Offer this machine's boards and builders to a farm.

    The command runs until Ctrl-C. SCHEDULER is the address of `farm scheduler`:
    tcp://127.0.0.1:8786 on this machine, tls://host:8786 with keys elsewhere. A board is a name or
    a URL. Each board is checked before it takes work, and is withdrawn while it is hot, throttled
    or lost.
    """
    from ..farm.engine import require_distributed, scheduler_address

    require_distributed()
    from ..farm.member import Place, join

    count = cores() if builders is None else builders
    if count < 0:
        raise Misuse("builders cannot be fewer than none", where=f"--builders {builders}", mend="0")
    address = scheduler_address(scheduler)
    places = [_place(board) for board in boards]
    twice = [url for url, n in Counter(p.url for p in places).items() if n > 1]
    if twice and not twice[0].startswith("qemu://"):
        raise Misuse("a board is offered once", where=f"--board {twice[0]}", mend="without one")
    logging.getLogger("distributed").setLevel(logging.WARNING)
    offered = [Place(place.url, place.target or "") for place in places]
    asyncio.run(join(address, offered, count, lambda text: tell(text, sys.stderr)))
    return OK


def _place(board: str) -> Enrolled:
    if board == NONE:
        raise Misuse("a farm has boards", where=f"--board {NONE}", mend="a board's URL, or none")
    return located(board)


@farm.command(
    "scheduler",
    cls=Command,
    examples=("mlc-deploy farm scheduler", "mlc-deploy farm scheduler tls://10.0.0.2:8786"),
)
@click.argument("address", default="tcp://127.0.0.1:8786")
@DEBUG
def scheduler_command(address: str) -> int:
    """Run the scheduler of a farm.

    The command runs until Ctrl-C, at ADDRESS (default: tcp://127.0.0.1:8786). Another address than
    loopback needs tls:// and the keys of a scheduler, which `farm keys` makes. The command listens
    on this one port, and runs no code of others.
    """
    from ..farm.engine import require_distributed, scheduler_address

    require_distributed()
    from ..farm.queue import serve

    logging.getLogger("distributed").setLevel(logging.ERROR)
    asyncio.run(serve(scheduler_address(address), lambda text: tell(text, sys.stderr)))
    return OK


@farm.command(
    "keys",
    cls=Command,
    examples=("mlc-deploy farm keys farm-keys --member attic --user ada",),
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@grouped(
    FARM, "--member", "members", multiple=True, metavar="NAME",
    help="Make keys of this member; repeat for more",
)  # fmt: skip
@grouped(
    FARM, "--user", "users", multiple=True, metavar="NAME",
    help="Make keys of this user; repeat for more",
)  # fmt: skip
@DEBUG
def keys_command(folder: Path, members: tuple[str, ...], users: tuple[str, ...]) -> int:
    """Make the keys of a farm of several machines.

    FOLDER gets a folder for the scheduler, and one for each member and user. Copy each to its
    machine, as ~/.config/mlc-deploy/farm or where MLC_FARM_KEYS points. The same command with other
    names makes further keys of the same farm.
    """
    from ..farm.engine import require_distributed

    require_distributed()
    from ..farm.keys import make_keys

    for name in (*members, *users):
        if not re.fullmatch(r"[\w.-]+", name):
            raise Misuse("a name has letters, digits, '.', '_' and '-'", where=name, mend="another")
    try:
        made = make_keys(folder, members, users)
    except OSError as error:
        raise FarmError(
            f"no keys can be made: {error.strerror}", where=str(folder), mend="another folder"
        ) from None
    for own in made:
        tell(f"{own}: to ~/.config/mlc-deploy/farm of that machine", sys.stdout)
    tell(f"{folder / 'ca.key'} and {folder / 'jobs.key'} stay here; keep them secret", sys.stdout)
    return OK


@farm.command("list", cls=Command)
@click.argument("scheduler")
@grouped(OUTPUTS, "--json", "json_file", metavar="FILE", help=JSON_HELP)
@DEBUG
def list_command(scheduler: str, json_file: str | None) -> int:
    """List a farm's boards, users and queues.

    SCHEDULER is the address of `farm scheduler`: tcp://127.0.0.1:8786 on this machine,
    tls://host:8786 with keys elsewhere.
    """
    from ..farm.engine import require_distributed

    require_distributed()
    from ..farm.client import Farm
    from ..farm.work import BUILDER, resource

    to_json = JsonFile(json_file)
    with Farm(scheduler, warn=Progress(False).warn) as connected:
        boards, builders, waiting = connected.boards(), connected.builders(), connected.waiting()
    of_kind: Counter[str] = Counter()
    for name, n in waiting.items():
        of_kind[name.partition("#")[0]] += n
    queues = {kind: of_kind[resource(kind)] for kind in sorted({b.kind for b in boards if b.kind})}
    record: dict[str, Any] = {
        "boards": [_row(asdict(board)) for board in boards],
        "builders": builders,
        "queues": queues,
        "builds": waiting[BUILDER],
    }
    console = console_for(to_json.beside)
    table = plain_table(
        ("board", False), ("kind", False), ("host", False), ("state", False), ("user", False),
        ("°C", True),
    )  # fmt: skip
    for b in boards:
        state = f"{b.state}: {b.why}" if b.why else b.state
        degrees = "" if b.degrees is None else f"{b.degrees:.0f}"
        add_row(table, b.url, b.kind, b.host, state, b.user, degrees)
    if boards:
        console.print(table)
    else:
        tell("no boards; try: mlc-deploy farm join SCHEDULER --board B", to_json.beside)
    for kind, n in queues.items():
        tell(f" {n} measurements wait or run on {kind}", to_json.beside)
    tell(f" {waiting[BUILDER]} builds wait or run on {builders} builders", to_json.beside)
    to_json.write(record)
    return OK


def _row(board: dict[str, Any]) -> dict[str, Any]:
    """The entry of a board in the record."""
    names = ("url", "kind", "host", "state", "user", "why", "degrees", "fingerprint")
    return {name: board[name] for name in names}
