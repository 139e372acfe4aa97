"""A real sshd on a loopback address, for the user who runs the tests, and an ssh configuration that reaches it."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from longboat.spec.files.hosts_file import HostsFile, load_hosts_file

START_S = 20.0


def sshd_program() -> str | None:
    """The server's program, by whole path, as sshd wants to be called."""
    named = os.environ.get("LONGBOAT_TEST_SSHD")
    return named or shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class LocalSshd:
    """A server with keys of its own in a folder."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        for name in ("host_key", "own_key", "other_key"):
            self._keygen(name)
        shutil.copyfile(folder / "own_key.pub", folder / "authorized_keys")
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        )
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        argv = [program, "-D", "-e", "-f", str(folder / "sshd_config")]
        with (folder / "sshd.log").open("w") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait()
        host_key = (folder / "host_key.pub").read_text()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {host_key}")

    def _keygen(self, name: str) -> None:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
        subprocess.run(words, check=True, timeout=30)

    def _wait(self) -> None:
        end_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end_s:
                    raise RuntimeError((self.folder / "sshd.log").read_text()) from None
                time.sleep(0.05)

    def hosts_file(self, *, key: str = "own_key", known: str = "known", port: int | None = None) -> HostsFile:
        """A hosts file of this one host, whose folders lie in the server's folder."""
        config = self.folder / f"config-{key}-{known}"
        config.write_text(
            f"Host *\n IdentityFile {self.folder}/{key}\n IdentitiesOnly yes\n"
            f" UserKnownHostsFile {self.folder}/{known}\n GlobalKnownHostsFile /dev/null\n"
        )
        return load_hosts_file(
            f"hosts: [{{host: 127.0.0.1, port: {port or self.port}}}]\nuser: {getpass.getuser()}\n"
            f"ssh_config: {config}\ninstall: {{index: longboat==0.1.0}}\n"
            f"folders: {{software: {self.folder}/software, data: {self.folder}/data}}\n",
            "hosts.yaml",
        )

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)
