"""The board's cache directory: what is believed of it, what is refused, what makes room."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from mlc_deploy.board.runtime_files import runtime_file
from mlc_rpc.errors import Refused
from mlc_rpc.link import Pending
from mlc_rpc.local import local_machine
from mlc_rpc.process import ProcessTransport
from mlc_rpc.session import Session

Open = Callable[[], Session]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    made.mkdir(mode=0o700)
    return made


def open_session(folder: Path) -> Session:
    command = [str(runtime_file(local_machine())), "--cache", str(folder)]
    return Session(ProcessTransport("local://", command, tempfile.TemporaryDirectory()))


@pytest.fixture
def opened(folder: Path) -> Open:
    return partial(open_session, folder)


def random_bytes(seed: int, size: int = 700_000) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def name_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def complaint(folder: Path) -> str:
    done = subprocess.run(
        [runtime_file(local_machine()), "--cache", folder], input=b"", capture_output=True
    )
    return done.stderr.decode()


def test_only_a_directory_of_the_users_own_is_used(folder: Path) -> None:
    assert complaint(folder) == ""
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert f"no cache in {link}: " in complaint(link)
    folder.chmod(0o750)
    assert complaint(folder) == f"mlc-runtime: no cache in {folder}: others may use it\n"
    assert "No such file" in complaint(folder / "nothing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
def test_another_users_directory_is_refused(folder: Path) -> None:
    os.chown(folder, 65534, 65534)
    assert complaint(folder) == f"mlc-runtime: no cache in {folder}: it is another user's\n"


def test_links_and_wrong_content_are_no_blobs(folder: Path, opened: Open) -> None:
    data = random_bytes(1)
    elsewhere = folder.parent / "elsewhere"
    elsewhere.write_bytes(data)
    blob = folder / f"blob-{name_of(data).hex()}"
    blob.symlink_to(elsewhere)
    with opened() as session:
        assert not session.has(name_of(data)), "a link was followed"
    blob.unlink()
    blob.write_bytes(random_bytes(2))
    with opened() as session:
        assert not session.has(name_of(data)) and not blob.exists()
        session.put(data)
    assert blob.read_bytes() == data and elsewhere.read_bytes() == data


def test_a_part_that_is_a_link_is_not_written_to(folder: Path, opened: Open) -> None:
    data = random_bytes(3)
    victim = folder.parent / "victim"
    victim.write_bytes(b"")
    (folder / f"part-{name_of(data).hex()}").symlink_to(victim)
    with opened() as session:
        session.put(data)
        assert session.get(name_of(data)) == data
    assert victim.read_bytes() == b""


def test_two_sessions_that_send_the_same(folder: Path, opened: Open) -> None:
    data = random_bytes(4)
    with opened() as one, opened() as other:
        one.call("blob.put", name_of(data), len(data), 0, data[:1000])
        other.put(data)
        assert other.get(name_of(data)) == data
        one.put(data)
        assert one.get(name_of(data)) == data
    assert (folder / f"blob-{name_of(data).hex()}").read_bytes() == data


def test_what_another_session_has_brought_is_accepted(folder: Path, opened: Open) -> None:
    """From wherever on it is sent; what is sent then is not needed, and changes nothing."""
    data, name = random_bytes(7), name_of(random_bytes(7))
    with opened() as one, opened() as other:
        assert not one.has(name), "and so it will send it"
        other.call("blob.put", name, len(data), 0, data[:1000])
        other.close()
        assert one._blob(name) == (1000, False)
        with opened() as third:
            third.put(data)
        assert one.call("blob.put", name, len(data), 1000, b"") == len(data)
        assert one.call("blob.put", name, len(data), 1000, bytes(500)) == len(data)
        assert one.call("blob.put", name, len(data), 0, bytes(500)) == len(data)
        assert one.get(name) == data
        with pytest.raises(Refused, match="do not continue this blob"):
            one.call("blob.put", name, len(data) + 1, 0, b"x")
    assert [file.name for file in folder.iterdir()] == [f"blob-{name.hex()}"]
    assert (folder / f"blob-{name.hex()}").stat().st_mode & 0o777 == 0o400


def test_one_of_two_goes_on_where_a_third_left_off(folder: Path, opened: Open) -> None:
    data, name = random_bytes(8), name_of(random_bytes(8))
    with opened() as session:
        session.call("blob.put", name, len(data), 0, data[:400_000])
    with opened() as one, opened() as other:
        assert one._blob(name) == other._blob(name) == (400_000, False)
        assert one.call("blob.put", name, len(data), 400_000, data[400_000:500_000]) == 500_000
        with pytest.raises(Refused, match="do not continue this blob, of which 0 bytes are there"):
            other.call("blob.put", name, len(data), 400_000, data[400_000:])
        assert other.put(data) == one.put(data) == name
        assert other.get(name) == one.get(name) == data
    assert [file.name for file in folder.iterdir()] == [f"blob-{name.hex()}"]


def test_parts_that_several_have_left_are_removed_with_the_last(folder: Path, opened: Open) -> None:
    data, name = random_bytes(10), name_of(random_bytes(10))
    sessions = [opened() for _ in range(3)]
    for size, session in zip((100_000, 300_000, 200_000), sessions, strict=True):
        session.call("blob.put", name, len(data), 0, data[:size])
    for session in sessions:
        session.close()
    assert len(list(folder.iterdir())) == 3
    with opened() as session:
        before = session.sent_bytes
        session.put(data)
        assert session.sent_bytes - before < len(data) - 300_000 + 1000, "the longest serves"
    assert [file.name for file in folder.iterdir()] == [f"blob-{name.hex()}"]


HOSTS, SENT = 4, 150  # sessions at once, and blobs that each sends: the same, in the same order


def send_many(folder: Path, begin: Barrier) -> None:
    begin.wait()
    with open_session(folder) as session:
        for which in range(SENT):
            data = random_bytes(which, 5 + 97 * which)
            name = session.put(data)
            assert session.get(name) == data
            session.forget(name)


@pytest.mark.parametrize("full", [False, True])
def test_many_small_blobs_of_several_hosts(full: bool, folder: Path) -> None:
    """None is refused and only whole blobs are left, also where each makes others give way."""
    if full:  # all that the cache may hold, in holes, which take no room
        for number in range(64):
            with (folder / f"old-{number}").open("wb") as file:
                file.truncate((2 << 30) // 64)
            os.utime(folder / f"old-{number}", (number, number))
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(HOSTS)
    hosts = [context.Process(target=send_many, args=(folder, begin)) for _ in range(HOSTS)]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join()
    assert [host.exitcode for host in hosts] == [0] * HOSTS
    left = {file.name: file for file in folder.iterdir() if not file.name.startswith("old-")}
    names = {which: name_of(random_bytes(which, 5 + 97 * which)) for which in range(SENT)}
    assert left.keys() == {f"blob-{name.hex()}" for name in names.values()}
    for which, name in names.items():
        assert left[f"blob-{name.hex()}"].read_bytes() == random_bytes(which, 5 + 97 * which)


def test_content_of_another_name_is_not_kept(folder: Path, opened: Open) -> None:
    data = random_bytes(5)
    with opened() as session, pytest.raises(Refused, match="another hash"):
        session.call("blob.put", name_of(b"other"), len(data[:1000]), 0, data[:1000])
    assert list(folder.iterdir()) == []


def test_the_oldest_makes_room_where_the_cache_is_full(folder: Path, opened: Open) -> None:
    old = folder / "runtime-old"
    with old.open("wb") as file:
        file.truncate(2 << 30)  # all that a cache may hold; a hole, which takes no room
    os.utime(old, (1, 1))
    data = random_bytes(6)
    with opened() as session:
        session.put(data)
    assert [file.name for file in folder.iterdir()] == [f"blob-{name_of(data).hex()}"]


def test_an_empty_blob(opened: Open) -> None:
    for _ in range(2):
        with opened() as session:
            assert session.get(session.put(b"")) == b""


LARGE_BYTES = 128 << 20


def pings_until(session: Session, pending: Pending) -> int:
    """How many are answered before the request is."""
    count = 0
    while pending.answer.empty():
        session.ping()
        count += 1
    return count


def test_the_board_answers_while_it_reads_a_large_blob(folder: Path, opened: Open) -> None:
    data = bytes(LARGE_BYTES)
    with (folder / f"blob-{name_of(data).hex()}").open("wb") as file:
        file.truncate(LARGE_BYTES)
    with opened() as session:
        pending = session.link.send("blob.has", (name_of(data),), 60)
        assert pings_until(session, pending) > 10
        assert session.link.wait(pending) == [LARGE_BYTES, True]
        begun = session.link.send("blob.has", (name_of(data),), 60)
        assert pings_until(session, begun) <= 10, "it is read once"


@pytest.mark.parametrize("damaged", [False, True])
def test_the_board_answers_while_it_reads_a_large_part(
    damaged: bool, folder: Path, opened: Open
) -> None:
    data, size = bytes(LARGE_BYTES) + b"the rest", LARGE_BYTES
    name = name_of(data)
    with (folder / f"part-{name.hex()}").open("wb") as file:
        file.truncate(size)
        if damaged:
            file.seek(5)
            file.write(b"x")
    with opened() as session:
        pending = session.link.send("blob.put", (name, len(data), size), 60, b"")
        assert pings_until(session, pending) > 10
        assert session.link.wait(pending) == size
        if damaged:
            with pytest.raises(Refused, match="another hash than its name says"):
                session.call("blob.put", name, len(data), size, data[size:])
            assert not session.has(name) and not list(folder.iterdir())
        else:
            assert session.call("blob.put", name, len(data), size, data[size:]) == len(data)
            assert session.has(name)


def test_what_is_asked_meanwhile_comes_after_it(folder: Path, opened: Open) -> None:
    data = random_bytes(9, 3 << 20)
    (folder / f"blob-{name_of(data).hex()}").write_bytes(data)
    with opened() as session:
        first = session.link.send("blob.has", (name_of(data),), 60)
        second = session.link.send("blob.get", (name_of(data), 5, 7), 60)
        third = session.link.send("blob.free", (name_of(data),), 60)
        assert session.link.wait(first) == [len(data), True]
        assert session.link.wait(second) == data[5:12]
        assert session.link.wait(third) is None
