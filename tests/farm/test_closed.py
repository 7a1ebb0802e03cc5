"""Peers that speak Dask's protocol, and want a farm's processes to run, read or queue something."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlc_deploy.errors import FarmError
from mlc_deploy.farm.client import Farm
from tests.farm.farms import MLC_DEPLOY, LocalFarm, wait_for
from tests.farm.jobs import build_asleep
from tests.listening import is_local, listening, own_address, tree

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.farm


class Evil:
    """Unpickled by anyone, it leaves a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFarm]:
    with LocalFarm(tmp_path_factory.mktemp("closed")) as made:
        made.join("one")
        with made.connect() as connected:
            wait_for(connected, boards=0, builders=1)
        yield made


def still_works(farm: LocalFarm) -> None:
    with farm.connect() as connected:
        connected.builder().submit(build_asleep, 0.0).result(60)


def ports(farm: LocalFarm) -> set[tuple[Any, int]]:
    return {place for process in farm.processes.values() for place in listening(process.pid)}


def test_it_listens_on_loopback_and_on_no_more_ports_than_it_needs(farm: LocalFarm) -> None:
    assert all(is_local(address) for address, _ in ports(farm))
    assert len(ports(farm)) == 2  # the scheduler's, and that of the one worker
    if (here := own_address()) is not None:
        for _, port in ports(farm):
            with pytest.raises(OSError), socket.create_connection((here, port), timeout=5):
                pass


def messages(marker: Path) -> Iterator[dict[str, Any]]:
    """Every request that Dask's servers know, each with code wherever code is taken."""
    from distributed.protocol import Serialize, ToPickle

    code = pickle.dumps(Evil(marker))
    ops = ["identity", "echo", "connection_stream", "dump_state", "close", "no-such-op"]
    ops += sorted(handlers_of_dask())
    for op in ops:
        yield {"op": op, "function": code, "plugin": code, "data": code, "name": "x"}
        yield {"op": op, "function": ToPickle(Evil(marker))}
        yield {"op": op, "function": Serialize(Evil(marker))}
    source = f"open({str(marker)!r}, 'w').close()".encode()
    yield {"op": "upload_file", "filename": "evil.py", "data": source, "load": True}


def handlers_of_dask() -> set[str]:
    """The names of all handlers of Dask's own servers."""
    import inspect
    import re

    sources = [inspect.getsource(cls) for cls in (distributed.Worker, distributed.Scheduler)]
    return set(re.findall(r'^            "([\w-]+)": self\.', "\n".join(sources), re.MULTILINE))


async def say(address: str, message: dict[str, Any]) -> Any:
    """The answer of a server of Dask; None if it hangs up."""
    from distributed.comm import connect

    comm = await connect(address, timeout=5)
    try:
        await comm.write(message)
        return await asyncio.wait_for(comm.read(), 1.0)
    except (OSError, TimeoutError):
        return None
    finally:
        comm.abort()


def test_no_message_runs_code(farm: LocalFarm, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    assert len(handlers_of_dask()) > 60

    async def attack() -> None:
        for _, port in sorted(ports(farm), key=lambda place: place[1]):
            for message in messages(marker):
                await say(f"tcp://127.0.0.1:{port}", message)
                assert not marker.exists(), (port, message)

    asyncio.run(attack())
    time.sleep(1.0)
    assert not marker.exists()
    still_works(farm)


def test_only_a_status_is_an_enumeration(farm: LocalFarm) -> None:
    """Dask resolves {"__Enum__": …} to any attribute of its modules."""
    import msgpack
    from distributed.comm import connect

    async def attack(port: int) -> Any:
        comm = await connect(f"tcp://127.0.0.1:{port}", timeout=5)
        enum = {
            "__Enum__": True,
            "__module__": "distributed.utils",
            "__name__": "os",
            "name": "system",
        }
        frame = msgpack.packb({"op": "ping", "x": enum})
        try:
            from distributed.protocol.utils import pack_frames

            whole = pack_frames([frame])
            await comm.stream.write(len(whole).to_bytes(8, sys.byteorder) + whole)
            return await asyncio.wait_for(comm.read(), 2.0)
        except (OSError, TimeoutError):
            return None
        finally:
            comm.abort()

    for _, port in ports(farm):
        answer = asyncio.run(attack(port))
        assert answer is None or "another enumeration than a status" in str(answer)
    still_works(farm)


def test_no_client_of_dask_runs_code(farm: LocalFarm, tmp_path: Path) -> None:
    """It is connected, as a user of the farm is, and asks for what Dask's clients may. Markers name
    the process that made them: Dask's client itself runs some of the code, to tokenize it."""
    marker = tmp_path / "ran"
    command = f"touch {marker}-$PPID"
    source = tmp_path / "evil.py"
    source.write_text(f"import os; open(f'{marker}-{{os.getpid()}}', 'w').close()\n")
    evil = Evil(Path(f"{marker}-$PPID"))
    with distributed.Client(farm.address, set_as_default=False) as client:
        asked = [
            lambda: client.submit(os.system, command, pure=False).result(timeout=3),
            lambda: client.submit(len, evil, pure=False).result(timeout=3),
            lambda: client.run(os.system, command),
            lambda: client.run_on_scheduler(os.system, command),
            lambda: client.upload_file(str(source)),
            lambda: client.register_plugin(Plugin(marker)),
            lambda: client.scatter(evil, broadcast=True, timeout=3),
            lambda: client.set_metadata("x", evil),
        ]
        for ask in asked:
            with suppress(Exception, CancelledError):  # whatever Dask makes of silence
                ask()
    ran_in = {int(path.name.rpartition("-")[2]) for path in tmp_path.glob("ran-*")}
    assert not ran_in & {p for of in farm.processes.values() for p in tree(of.pid)}
    still_works(farm)


WorkerPlugin: Any = distributed.WorkerPlugin


class Plugin(WorkerPlugin):
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def setup(self, worker: Any) -> None:
        Path(f"{self.marker}-{os.getpid()}").touch()


OPEN_SCHEDULER = """
import asyncio, sys
from distributed import Scheduler
async def main():
    async with Scheduler(host="tcp://127.0.0.1", port=int(sys.argv[1]), dashboard=False) as one:
        await one.finished()
asyncio.run(main())
"""


def test_a_member_runs_nothing_of_a_scheduler_that_takes_everything(tmp_path: Path) -> None:
    """The peers that a member trusts most: its scheduler, and the clients of that."""
    marker = tmp_path / "ran"
    farm = LocalFarm(tmp_path)
    try:
        farm.start("scheduler", sys.executable, "-c", OPEN_SCHEDULER, str(farm.port))
        farm.join("one")
        said: list[str] = []
        with farm.connect(warn=said.append) as connected:
            wait_for(connected, boards=0, builders=1)
        assert said == [
            f"{farm.address} is a scheduler of Dask's, which runs the code of everyone who reaches "
            f"it; mlc-deploy farm scheduler {farm.address} runs none"
        ]
        program = ATTACK.format(address=farm.address, marker=str(marker))
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        )
        assert "attacked" in done.stdout, done.stderr
        ran_in = {int(path.name.rpartition("-")[2]) for path in tmp_path.glob("ran-*")}
        assert farm.processes["scheduler"].pid in ran_in  # the attack is one
        assert not ran_in & tree(farm.processes["one"].pid)
        still_works(farm)
    finally:
        farm.__exit__()


ATTACK = """
import os, sys
from distributed import Client, WorkerPlugin
class Evil:
    def __reduce__(self):
        return os.system, ("touch {marker}-$PPID",)
class Plugin(WorkerPlugin):
    def setup(self, worker):
        os.system("touch {marker}-$PPID")
with Client("{address}") as client:
    (worker,) = client.scheduler_info()["workers"]
    for ask in (
        lambda: client.run(os.system, "touch {marker}-$PPID"),
        lambda: client.submit(os.system, "touch {marker}-$PPID", pure=False).result(timeout=5),
        lambda: client.submit(len, Evil(), pure=False).result(timeout=5),
        lambda: client.scatter([Evil()], workers=[worker], timeout=5),
        lambda: client.register_plugin(Plugin()),
    ):
        try:
            ask()
        except BaseException as error:
            print(type(error).__name__)
print("attacked")
"""


def test_what_is_no_task_is_not_sent(farm: LocalFarm) -> None:
    with farm.connect() as connected, pytest.raises(FarmError) as error:
        connected.builder().submit(os.system, "true")
    assert str(error.value) == (
        "this cannot be sent to a farm: 'system' is not a task of a farm\n"
        f"  in:  {farm.address}\n"
        "  try: --board; functions of a --converters file stay on this machine"
    )


def test_a_user_with_another_key_is_told(
    farm: LocalFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of this machine reaches the ports, and has not got the key."""
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        with Farm(farm.address) as stranger:
            assert stranger.boards() == []
            with pytest.raises(FarmError, match="a member cannot read this call"):
                stranger.builder().submit(build_asleep, 0.0).result(60)


def test_what_dask_gives_up_is_told_from_what_it_cannot_say() -> None:
    """Errors of Dask's servers arrive as pickles that nobody reads."""
    farm: Any = SimpleNamespace(_distributed=distributed)
    lost = distributed.KilledWorker("key", None, 3)
    assert Farm.is_death(farm, Exception(pickle.dumps(lost)))
    assert not Farm.is_death(farm, Exception(b"other"))
    assert not Farm.is_death(farm, Exception())


def test_results_are_read_by_who_asked_alone(farm: LocalFarm) -> None:
    """Another client of the scheduler fetches a result, and cannot tell what is in it."""
    secret = "the weights of a model"
    with farm.connect() as connected:
        client = connected.client()
        sealed = connected.sealed(build_asleep, (0.0,), 0.0)
        key: list[str] = []
        begin = client.submit

        def submit(*args: Any, **options: Any) -> Any:
            key.append(options["key"])
            return begin(*args, **options)

        client.submit = submit
        ran = connected.begin(client, "builder", sealed.call, 0.0, None)
        answer = ran.result(60)
        assert connected.opened(sealed, answer).error is None
        assert secret.encode() not in connected.sealed(build_asleep, (secret,), 0.0).call
        with distributed.Client(farm.address, set_as_default=False) as other:
            held = other.sync(other.scheduler.gather, keys=key)
        assert b"Done" not in pickle.dumps(held) and b"mlc_deploy" not in pickle.dumps(held)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "farm-keys"
    subprocess.run([*MLC_DEPLOY, "farm", "keys", str(folder), "--user", "ada"], check=True)
    subprocess.run([*MLC_DEPLOY, "farm", "keys", str(folder), "--user", "bob"], check=True)
    return folder


def test_keys_are_of_one_holder_each(keys: Path) -> None:
    names = {path.name for path in keys.iterdir() if path.is_dir()}
    assert names == {"scheduler", "member", "user-ada", "user-bob"}
    for path in keys.glob("**/*.key"):
        assert path.stat().st_mode & 0o077 == 0
    assert not (keys / "user-ada" / "jobs.key").exists()


@pytest.mark.skipif(own_address() is None, reason="no address but loopback")
def test_at_another_address_only_holders_of_keys_do_anything(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    here = own_address()
    monkeypatch.setenv("MLC_FARM_KEYS", str(keys / "scheduler"))
    with LocalFarm(tmp_path, scheme="tls", host=here or "") as farm:
        monkeypatch.setenv("MLC_FARM_KEYS", str(keys / "member"))
        farm.join("one")
        monkeypatch.setenv("MLC_FARM_KEYS", str(keys / "user-ada"))
        with farm.connect() as ada:
            wait_for(ada, boards=0, builders=1)
            ada.builder().submit(build_asleep, 0.0).result(60)
            assert {str(address) for address, _ in ports(farm)} == {here}

            async def attack(scheme: str, **options: Any) -> None:
                from distributed.comm import connect

                for _, port in sorted(ports(farm), key=lambda place: place[1]):
                    for message in list(messages(marker))[:12]:
                        with pytest.raises((OSError, asyncio.TimeoutError)):
                            comm = await connect(f"{scheme}://{here}:{port}", timeout=1, **options)
                            await comm.write(message)
                            await asyncio.wait_for(comm.read(), 1.0)

            asyncio.run(attack("tcp"))
            import ssl

            stranger = ssl.create_default_context()
            stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
            asyncio.run(attack("tls", ssl_context=stranger))
            assert not marker.exists()
            assert ada.waiting().total() == 0
            # A user is no scheduler of members, and a member is no user.
            (_, port) = next(place for place in ports(farm) if place[1] != farm.port)
            asked: dict[str, Any] = {"op": "get_data", "keys": [], "who": "x"}
            assert asyncio.run(say_as(keys / "user-ada", f"tls://{here}:{port}", asked)) is None
            asked = {"op": "register-client", "client": "x", "versions": {}}
            assert asyncio.run(say_as(keys / "member", farm.address, asked)) is None
            asked = {"op": "identity"}
            assert asyncio.run(say_as(keys / "user-bob", farm.address, asked)) is not None


async def say_as(folder: Path, address: str, message: dict[str, Any]) -> Any:
    from distributed.comm import connect

    from mlc_deploy.farm.keys import Keys

    options = Keys(b"", None, folder).security().get_connection_args("client")
    comm = await connect(address, timeout=5, **options)
    try:
        await comm.write(message)
        return await asyncio.wait_for(comm.read(), 5.0)
    except OSError:
        return None
    finally:
        comm.abort()


def test_without_keys_no_address_but_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MLC_FARM_KEYS", raising=False)
    for command, role in (
        (("scheduler",), "scheduler"),
        (("join",), "member"),
        (("list",), "user"),
    ):
        for address in ("tls://0.0.0.0:8786", "tls://192.0.2.9:8786"):
            done = subprocess.run(
                [*MLC_DEPLOY, "farm", *command, address],
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.stderr == (
                "error: a farm of several machines needs keys, and there are none here\n"
                f"  in:  {address}\n"
                "  try: mlc-deploy farm keys farm-keys, then "
                f"MLC_FARM_KEYS=farm-keys/{role} before this command\n"
            ), done.stderr
            assert done.returncode == 1


def test_a_call_that_somebody_cancels_ends_in_an_error(tmp_path: Path) -> None:
    """With Dask's own scheduler, which lets every client cancel every call, or forget it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlc_deploy.farm.client.WATCH_SECONDS", 0.5)
        farm = LocalFarm(tmp_path)
        try:
            farm.start("scheduler", sys.executable, "-c", OPEN_SCHEDULER, str(farm.port))
            farm.join("one")
            with farm.connect() as connected:
                wait_for(connected, boards=0, builders=1)
                for way in ("cancel", "forget"):
                    job = connected.builder().submit(build_asleep, 60.0)
                    time.sleep(1.0)
                    mine = connected.client().id
                    program = FORGET.format(address=farm.address, way=way, mine=mine)
                    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
                    with pytest.raises(FarmError) as error:
                        job.result(30)
                    assert str(error.value) == (
                        "the scheduler has dropped this call: somebody else has cancelled it\n"
                        f"  in:  {farm.address}\n"
                        "  try: the same command again: it goes on where it stopped"
                    )
        finally:
            farm.__exit__()


FORGET = """
from distributed import Client
def keys(dask_scheduler):
    return [k for k in dask_scheduler.tasks if k.startswith("builder")]
def forget(dask_scheduler):
    found = [k for k in dask_scheduler.tasks if k.startswith("builder")]
    dask_scheduler.client_releases_keys(keys=found, client="{mine}")
with Client("{address}") as client:
    if "{way}" == "cancel":
        found = client.run_on_scheduler(keys)
        client._send_to_scheduler({{
            "op": "cancel-keys", "keys": found, "force": True, "reason": "no", "msg": "no",
        }})
        client.run_on_scheduler(keys)
    else:
        client.run_on_scheduler(forget)
"""
