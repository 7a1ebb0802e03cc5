"""`mlc-deploy board`: the user's boards, what they are, and whether to trust their times."""

from __future__ import annotations

import sys
from collections import Counter
from urllib.parse import urlsplit

import click

from mlc_rpc import Session
from mlc_rpc.facts import Facts, findings, read_facts
from mlc_rpc.keys import how_to_start, key_path, make_key
from mlc_rpc.transport import LabgridUrl, SshUrl, TcpUrl, parse_url

from ..board.calibrated import forget_calibration
from ..board.connect import connect, target_of
from ..board.enrolled import Enrolled, boards_file, enroll, enrolled_boards, remove
from .box import box_text
from .calibrate import calibrate_command
from .errors import FAILED, OK
from .groups import Group
from .help import BOARD, COMPILING, HELP_NAMES, Command, grouped
from .options import DEBUG, Misuse
from .place import checked, located
from .tables import add_row, bytes_text, console_for, labelled, plain_table, tell

SECONDS = 30.0  # to read a board's key or facts


@click.group(cls=Group, context_settings={"help_option_names": HELP_NAMES})
def board() -> None:
    """Register boards under names, show and check them."""


board.add_command(calibrate_command)

TCP_START = (
    "Run this once. It needs mlc-runtime (--save FOLDER/ writes it) in the board's home folder.\n"
    "Where the board has no ssh, copy both files by other means and start mlc-runtime there"
)


@board.command(
    "enroll",
    cls=Command,
    examples=(
        "mlc-deploy board enroll kitchen ssh://pi@raspberrypi.local",
        "mlc-deploy model.onnx --board kitchen",
    ),
)
@click.argument("name")
@click.argument("url")
@grouped(
    COMPILING, "--target", metavar="T",
    help="Target to compile for on this board (default: as the board reports)",
)  # fmt: skip
@grouped(
    BOARD, "--fingerprint", metavar="SHA256:…", help="Trust the host key with this fingerprint"
)
@DEBUG
def enroll_command(name: str, url: str, target: str | None, fingerprint: str | None) -> int:
    """Register a board under a name.

    NAME then stands for URL in --board. Over ssh, the command shows the board's host key and trusts
    it once you agree. For tcp://, it makes a key and says how to copy it to the board.
    """
    match parse_url(checked(url)):
        case SshUrl() as address:
            if not _seen(url, address, fingerprint):
                return FAILED
        case LabgridUrl() as board:
            from mlc_rpc.labgrid import lent

            with lent(board) as place:
                if not _seen(url, place.address, fingerprint):
                    return FAILED
        case TcpUrl(host, port):
            if not key_path(host).exists():
                make_key(host)
            tell(f"{TCP_START}:\n{how_to_start(host, host, port)}")
        case _:
            pass
    path = enroll(name, Enrolled(url, target))
    tell(f"enrolled: --board {name} ({path})", sys.stderr)
    return OK


def _seen(url: str, address: SshUrl, fingerprint: str | None) -> bool:
    """Whether the board at an address is trusted. Shows a trusted board."""
    if not _trusted(address, fingerprint):
        tell("not enrolled", sys.stderr)
        return False
    with connect(url) as session:
        tell(_summary(session))
    return True


def _trusted(address: SshUrl, fingerprint: str | None) -> bool:
    """Whether the host key is trusted: it is known, has the given fingerprint, or the user agrees
    on the terminal."""
    from mlc_rpc.ssh_client import is_trusted, server_key, trust
    from mlc_rpc.ssh_config import resolve

    host = resolve(address)
    if host.only_ssh:  # then ssh itself asks
        return True
    key = server_key(host, SECONDS)
    if fingerprint not in (None, key.fingerprint):
        raise host.unreachable(
            f"its host key is {key.fingerprint}, not {fingerprint}",
            "compare the fingerprint again: another machine may answer in the board's place",
        )
    if is_trusted(host, key):
        return True
    tell(f"host key of {host.board}: {key.get_name()} {key.fingerprint}", sys.stderr)
    if fingerprint is None and not sys.stdin.isatty():
        raise Misuse(
            "stdin is not a terminal, so nobody can compare the fingerprint",
            where=f"board enroll {host.board}",
            mend=f"--fingerprint {key.fingerprint}, if it is the board's own",
        )
    if fingerprint is None and not click.confirm("is it the board's own?", err=True):
        return False
    tell(f"added to {trust(host, key)}", sys.stderr)
    return True


@board.command("list", cls=Command)
@DEBUG
def list_command() -> int:
    """List the registered boards."""
    known = enrolled_boards()
    if not known:
        tell(f"no boards in {boards_file()}; try: mlc-deploy board enroll NAME ssh://host")
        return OK
    table = plain_table(("board", False), ("url", False), ("target", False))
    for name, entry in sorted(known.items()):
        add_row(table, name, entry.url, entry.target or "")
    console_for(sys.stdout).print(table)
    return OK


@board.command("remove", cls=Command)
@click.argument("name")
@DEBUG
def remove_command(name: str) -> int:
    """Remove a board from the list. Files on the board stay there."""
    gone = remove(name)
    forget_calibration(name)
    tell(f"removed: {name}, {gone.url}; files on it stay: mlc-deploy board clean {gone.url}")
    return OK


@board.command("info", cls=Command)
@click.argument("board_name", metavar="BOARD")
@DEBUG
def info_command(board_name: str) -> int:
    """Show a board's cores, caches, clocks and temperatures.

    BOARD is a name or a URL.
    """
    url = located(board_name).url
    facts = read_facts(url, SECONDS)
    with connect(url) as session:
        rows = _described(session) + (_told(facts) if facts else [])
    console = console_for(sys.stdout)
    for label, text in rows:
        console.print(labelled(label, text))
    return OK


@board.command("doctor", cls=Command)
@click.argument("board_name", metavar="BOARD")
@DEBUG
def doctor_command(board_name: str) -> int:
    """Check whether a board's timings can be trusted.

    BOARD is a name or a URL. The exit status is 1 on a warning; each warning comes with a remedy.
    """
    url = located(board_name).url
    facts = read_facts(url, SECONDS)
    if facts is None:
        scheme = urlsplit(url).scheme
        emulated = scheme == "qemu"
        tell(
            "warning  an emulated board has no times, only executed instructions"
            if emulated
            else f"warning  {scheme}:// does not show the board's clock and temperature"
        )
        tell(f"       try: {'a real board' if emulated else 'ssh://, where it has ssh'}")
        return FAILED
    found = findings(facts)
    for finding in found:
        tell(f"{'warning' if finding.mend else 'ok     '}  {finding.what}")
        if finding.mend:
            tell(f"       try: {finding.mend}")
    return FAILED if any(finding.mend for finding in found) else OK


@board.command("clean", cls=Command)
@click.argument("board_name", metavar="BOARD")
@DEBUG
def clean_command(board_name: str) -> int:
    """Delete the programs, objects and weights kept on a board.

    BOARD is a name or a URL.
    """
    url = located(board_name).url
    match parse_url(url):
        case SshUrl() as address:
            _clean(address)
        case LabgridUrl() as board:
            from mlc_rpc.labgrid import lent

            with lent(board) as place:
                _clean(place.address)
        case _:
            tell("nothing to remove: only ssh:// boards keep files")
    return OK


def _clean(address: SshUrl) -> None:
    from mlc_rpc.ssh import clean_ssh

    gone = clean_ssh(address, SECONDS)
    for cleaned in gone:
        tell(f"removed {cleaned.path}, {bytes_text(cleaned.bytes)}")
    if not gone:
        tell("nothing to remove")


def _summary(session: Session) -> str:
    """cortex-a72*4, aarch64, Linux 6.1.0"""
    device = session.device
    models = Counter(cpu.model for cpu in device.cpus)
    cores = " ".join(f"{model}*{count}" for model, count in models.items())
    return f"{cores}, {device.machine}, Linux {device.kernel}, {bytes_text(device.memory)}"


def _described(session: Session) -> list[tuple[str, str]]:
    device = session.device
    kinds = dict.fromkeys((cpu.model, cpu.midr) for cpu in device.cpus)
    return [
        ("board", session.board),
        *(("cores", _kind(model, midr, session)) for model, midr in kinds),
        ("features", " ".join(sorted(device.features))),
        ("memory", bytes_text(device.memory)),
        ("kernel", f"Linux {device.kernel}, pages of {device.page_size} bytes"),
        ("target", str(target_of(device))),
        ("runtime", device.runtime),
        ("sandbox", box_text(device.box)),
    ]


def _kind(model: str, midr: int, session: Session) -> str:
    numbers = [
        i for i, cpu in enumerate(session.device.cpus) if (cpu.model, cpu.midr) == (model, midr)
    ]
    which = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    return f"{len(numbers)} {model}" + (f", MIDR {midr:#010x}" if midr else "") + f" (core {which})"


def _told(facts: Facts) -> list[tuple[str, str]]:
    rows = [("model", facts.model)] if facts.model else []
    for cache in facts.caches:
        size = cache.size or "unknown size,"
        rows.append((f"L{cache.level}", f"{size} {cache.kind.lower()}, cores {cache.cores}"))
    clocks = dict.fromkeys((c.governor, c.most, c.capacity) for c in facts.cores if c.most)
    for governor, most, capacity in clocks:
        share = f", capacity {capacity}" if capacity else ""
        rows.append(("clock", f"{(most or 0) / 1e6:.2f} GHz at most, governor {governor}{share}"))
    for zone, degrees in (facts.temperatures or {}).items():
        rows.append(("zone", f"{zone}: {degrees:.1f} °C"))
    if facts.available is not None:
        rows.append(("free", bytes_text(facts.available)))
    if facts.load is not None:
        rows.append(("load", f"{facts.load:g}"))
    return rows
