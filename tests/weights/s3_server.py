"""A real S3 server (SeaweedFS) as a process, here or in a host of the lab."""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ("KEY", "SECRET", "key_environment", "server_command", "server_program", "until_it_answers")

KEY, SECRET = "longboat", "a-secret-of-the-tests"
BUCKET = "models"
READY_S = 60.0


def server_program() -> str | None:
    """The server's program, where the development environment has it."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def server_command(folder: Path, address: str, ports: Sequence[int]) -> list[str]:
    """Command line of a server with one user; ports: S3, master, volume, filer."""
    program = server_program()
    assert program is not None
    folder.mkdir(parents=True, exist_ok=True)
    credentials = [{"accessKey": KEY, "secretKey": SECRET}]
    users = {
        "identities": [{"name": "tests", "credentials": credentials, "actions": ["Admin", "Read", "List", "Write"]}]
    }
    (folder / "users.json").write_text(json.dumps(users))
    s3, master, volume, filer = ports
    return [
        *(program, "server", f"-dir={folder}", f"-ip={address}", f"-ip.bind={address}", "-filer", "-s3"),
        *(f"-s3.port={s3}", f"-s3.config={folder}/users.json", "-s3.port.iceberg=0"),
        *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
        *(f"-master.port.grpc={master + 10000}", f"-volume.port.grpc={volume + 10000}"),
        *(f"-filer.port.grpc={filer + 10000}", f"-s3.port.grpc={s3 + 10000}"),
        *("-volume.max=4", "-master.volumeSizeLimitMB=1024", "-master.volumePreallocate=false"),
    ]


def key_environment(key: str = KEY, secret: str = SECRET) -> dict[str, str]:
    """The variables with which clients read."""
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}


def store_of(address: str, port: int, prefix: str = "") -> Any:
    """The bucket, to write into."""
    from obstore.store import S3Store

    return S3Store(
        BUCKET,
        prefix=prefix or None,
        endpoint=f"http://{address}:{port}",
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def make_bucket(address: str, filer_port: int) -> None:
    """Make the bucket: retried until the server answers."""
    url = f"http://{address}:{filer_port}/buckets/{BUCKET}/"

    def made() -> bool:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=5) as answer:
            return bool(answer.status < 300)

    until_it_answers(made)


def until_it_answers(ask: Callable[[], bool]) -> None:
    """Ask until the answer is yes."""
    end_s = time.monotonic() + READY_S
    while True:
        try:
            if ask():
                return
        except OSError:
            pass
        assert time.monotonic() < end_s, "the S3 server does not answer"
        time.sleep(0.1)
