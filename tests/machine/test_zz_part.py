import time, threading
import pytest, mlc_deploy as mlc
from tests.machine.work import WORK
from tests.machine.test_faults import until_lost, some_steps
from tests.machine.conftest import *
pytestmark = pytest.mark.boards

def test_it(machine):
    board = machine
    ls = "ls -lai /root/.cache/mlc-runtime; mount | grep disk; dmesg | tail -5"
    with mlc.connect(board.url) as session:
        next(steps := WORK["load"](session))
        print(board.shell(ls))
        time.sleep(0.7)
        board.power_off()
        time.sleep(1)
        board.power_on()
        print("after", board.shell(ls))
        session.reconnect()
        print("reconnected", board.shell(ls))
        some_steps(session, "load")
        print("steps", board.shell(ls))
    time.sleep(2)
    print("closed", board.shell(ls))
    assert 0
