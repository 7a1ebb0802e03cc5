from __future__ import annotations
from mlc_rpc.transport import Runtime, SshUrl, Transport


def open_ssh(url: SshUrl, runtime: Runtime, timeout: float) -> Transport:
    raise NotImplementedError
