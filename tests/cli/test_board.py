"""`mlc-deploy board`, and names of boards where URLs are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlc_deploy as mlc
import mlc_rpc
from mlc_deploy.board.enrolled import Enrolled, boards_file, enroll, enrolled_boards, remove
from mlc_deploy.cli.box import box_facts, box_text
from mlc_deploy.cli.main import main
from mlc_deploy.cli.options import Misuse
from mlc_deploy.cli.place import choose, located
from mlc_deploy.errors import InputError
from mlc_rpc.wire import BOX


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "mlc-deploy" / "boards.toml"


def test_boards_are_kept_by_name(config: Path) -> None:
    assert enrolled_boards() == {}
    attic, kitchen = Enrolled("ssh://pi@attic"), Enrolled("tcp://kitchen:9190", "armv7a")
    assert enroll("attic", attic) == config == boards_file()
    enroll("kitchen.local", kitchen)
    enroll("attic", attic)
    assert enrolled_boards() == {"attic": attic, "kitchen.local": kitchen}
    assert config.read_text() == (
        '[attic]\nurl = "ssh://pi@attic"\n\n'
        '["kitchen.local"]\nurl = "tcp://kitchen:9190"\ntarget = "armv7a"\n'
    )


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(InputError, match="is not a name for a board"):
        enroll(name, Enrolled("local://"))


def test_a_name_is_not_taken_twice() -> None:
    enroll("attic", Enrolled("ssh://attic"))
    with pytest.raises(InputError, match="'attic' is ssh://attic already"):
        enroll("attic", Enrolled("ssh://other"))


KEPT = """# my boards
[attic]
url = "ssh://pi@attic"  # under the roof
["kitchen.local"]
url = "tcp://kitchen:9190"
target = "armv7a"

# the last one
[cellar]
url = "local://"
"""


def test_a_board_is_removed_and_the_other_lines_stay(config: Path) -> None:
    config.parent.mkdir()
    config.write_text(KEPT)
    assert remove("kitchen.local") == Enrolled("tcp://kitchen:9190", "armv7a")
    assert enrolled_boards().keys() == {"attic", "cellar"}
    for comment in ("# my boards", "# under the roof", "# the last one"):
        assert comment in config.read_text()
    assert remove("cellar") == Enrolled("local://")
    assert remove("attic") == Enrolled("ssh://pi@attic")
    assert enrolled_boards() == {}
    with pytest.raises(InputError) as error:
        remove("attic")
    assert str(error.value) == (
        f"no board is called 'attic'\n  in:  {config}\n  try: mlc-deploy board list"
    )


@pytest.mark.parametrize("text", ['attic = {url = "local://"}\n', 'attic.url = "local://"\n'])
def test_lines_that_cannot_be_told_apart_stay(config: Path, text: str) -> None:
    config.parent.mkdir()
    config.write_text(text)
    with pytest.raises(InputError, match="the lines of 'attic' cannot be told from others'"):
        remove("attic")
    assert config.read_text() == text


def test_a_session_is_had_by_name() -> None:
    enroll("attic", Enrolled("local://"))
    with mlc.connect("attic") as session:
        assert session.board == "local://"
    with pytest.raises(mlc_rpc.Unreachable, match="'atic' is not the URL of a board"):
        mlc.connect("atic")


@pytest.mark.parametrize("text", ["[", "[a]\n", "[a]\nurl = 1\n", '[a]\nurl = "x"\nport = 1\n'])
def test_a_file_that_is_not_in_order(config: Path, text: str) -> None:
    config.parent.mkdir()
    config.write_text(text)
    with pytest.raises(InputError):
        enrolled_boards()
    assert main(["board", "list"]) == 2


def test_a_name_stands_for_url_and_target() -> None:
    enroll("attic", Enrolled("tcp://attic:9190", "armv7a"))
    target, url = choose(None, "attic")
    assert url == "tcp://attic:9190" and target and target.arch == "arm"
    assert located("local://") == Enrolled("local://")
    with pytest.raises(Misuse, match="unknown board 'cellar'"):
        choose(None, "cellar")
    with pytest.raises(Misuse) as caught:
        located("atic")
    assert str(caught.value) == "unknown board 'atic'\n  in:  --board atic\n  try: attic"


def test_info_and_doctor_and_clean_here(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["board", "enroll", "here", "local://"]) == 0
    assert main(["board", "list"]) == 0
    assert "local://" in capfd.readouterr().out
    assert main(["board", "info", "here"]) == 0
    said = capfd.readouterr().out
    assert "features" in said and "kernel" in said and "load" in said
    assert main(["board", "doctor", "here"]) in (0, 1)
    assert "load" in capfd.readouterr().out
    assert main(["board", "clean", "here"]) == 0
    assert "nothing to remove" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (None, "not known"),
        ((), "nothing"),
        (("syscalls", "user"), "syscalls, user; not files, tcp, signals, processes, memory"),
        (BOX, "syscalls, files, tcp, signals, processes, user, memory"),
    ],
)
def test_what_the_box_holds_is_told(held: tuple[str, ...] | None, told: str) -> None:
    assert box_text(held) == told


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (None, []),
        (BOX, []),
        (("syscalls", "files"), []),
        (("syscalls",), ["lacks files, tcp, signals, processes, user, memory"]),
        ((), ["lacks syscalls, files, tcp, signals, processes, user, memory"]),
    ],
)
def test_a_run_tells_what_the_box_lacks(held: tuple[str, ...] | None, told: list[str]) -> None:
    facts = [("sandbox", f"{lack}; try: only models from people you trust") for lack in told]
    assert [*box_facts(held)] == facts


def test_an_emulated_board_is_not_trusted(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["board", "doctor", "qemu://cortex-a72"]) == 1
    assert "an emulated board has no times" in capfd.readouterr().out


def test_a_tcp_board_gets_a_key(capfd: pytest.CaptureFixture[str], config: Path) -> None:
    assert main(["board", "enroll", "attic", "tcp://attic:9190"]) == 0
    assert "--key-file mlc.key" in capfd.readouterr().out
    assert (config.parent / "keys" / "attic").stat().st_size == 32
