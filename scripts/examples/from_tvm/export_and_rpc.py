"""A library is saved, sent to a board, loaded there, run and timed.

upload and load_module are one step here, Session.load: an object is sent once per content.

    python scripts/examples/from_tvm/export_and_rpc.py [BOARD]
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from running import Board, command, connected, data

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.board.connect import target_of


def main(board: Board = "local://") -> None:
    A = te.placeholder((256,), name="A")
    B = te.compute((256,), lambda i: A[i] + 1, name="B")
    with connected(board) as remote, TemporaryDirectory() as folder:
        lib = mlc.build([A, B], target=target_of(remote.device), name="addone")
        path = lib.save(Path(folder) / "addone.o")
        assert path.read_bytes()[:4] == b"\x7fELF"
        func = remote.load(lib)["addone"]
        x = data(256)
        a, b = remote.tensor(x), remote.empty((256,))
        func(a, b)
        np.testing.assert_array_equal(b.numpy(), x + 1)
        timed = func.time_evaluator(number=10, repeat=3, min_repeat_ms=0)(a, b)
        print(f"{timed.median * 1e6:.1f} us")
        assert len(timed.samples) == 3


if __name__ == "__main__":
    command(main)
