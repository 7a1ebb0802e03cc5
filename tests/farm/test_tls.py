"""A farm over tls://: holders of a certificate, and those who have none."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mlc_deploy.errors import FarmError
from mlc_deploy.farm.client import Farm
from mlc_rpc import Unreachable
from tests.cli.command import MODELS, Command
from tests.farm.farms import LocalFarm, wait_for

pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.farm,
    pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="no QEMU: apt install qemu-user"),
]
SIDES = ("scheduler", "worker", "client")


def certificate(folder: Path, name: str) -> None:
    """A key, and a certificate that it signs itself: an authority with one member."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def settings(folder: Path, authority: str, own: str) -> dict[str, str]:
    """Dask's settings as environment variables: whom to believe, and with which key."""
    tls = "DASK_DISTRIBUTED__COMM__TLS"
    found = {
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
        f"{tls}__CA_FILE": str(folder / f"{authority}.pem"),
    }
    for side in SIDES:
        found[f"{tls}__{side.upper()}__CERT"] = str(folder / f"{own}.pem")
        found[f"{tls}__{side.upper()}__KEY"] = str(folder / f"{own}.key")
    return found


def set_all(patch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    import dask

    for name, value in values.items():
        patch.setenv(name, value)
    patch.setattr(dask.config, "config", dask.config.config.copy())
    dask.config.refresh()


def test_holders_of_a_certificate_share_a_farm(
    tmp_path: Path, mlc_deploy: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate(tmp_path, "farm")
    certificate(tmp_path, "stranger")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        set_all(patch, settings(tmp_path, "farm", "farm"))
        with LocalFarm(tmp_path, scheme="tls") as farm:
            farm.join("one", "qemu://cortex-a72")
            with farm.connect() as connected:
                wait_for(connected, boards=1, builders=1)
            ran = mlc_deploy(MODELS / "digits_cnn.onnx", "--farm", farm.address)
            assert ran.status == 0, ran.stderr
            assert "is not encrypted" not in ran.stderr
            with patch.context() as strange:
                set_all(strange, settings(tmp_path, "farm", "stranger"))
                with pytest.raises((Unreachable, FarmError)):
                    Farm(farm.address)
                set_all(strange, settings(tmp_path, "stranger", "stranger"))
                with pytest.raises((Unreachable, FarmError)):
                    Farm(farm.address)
    import dask

    dask.config.refresh()
