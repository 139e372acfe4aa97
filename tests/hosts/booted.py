"""Debian hosts that boot systemd and sshd, each in a network namespace: ``systemd-nspawn`` over mmdebstrap's tree."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGES = "systemd,systemd-sysv,dbus,libpam-systemd,dbus-user-session,openssh-server,iproute2,python3,sudo,procps"
MORE = "libnuma1,libgomp1"
PROGRAMS = ("systemd-nspawn", "mmdebstrap", "ip", "ssh", "ssh-keygen", "ssh-keyscan")
FOLDER = Path(os.environ.get("LONGBOAT_TEST_HOSTS", "/var/tmp/longboat-test-hosts"))
SUBNET, BRIDGE = "10.92.0", "lbhosts"
GATEWAY = 8000
BOOT_S, MAKE_S = 120.0, 900.0
USERS = ("deploy", "plain")


def why_unavailable() -> str:
    """Why hosts cannot be booted here; else empty."""
    if os.getuid():
        return "booting hosts needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)} (Debian: systemd-container mmdebstrap iproute2)" if missing else ""


def run(*words: str, check: bool = True, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=check, capture_output=True, text=True, timeout=limit_s)


class Site:
    """Two hosts, a bridge, and the operator's keys."""

    def __init__(self, folder: Path, binds: Sequence[str] = ()) -> None:
        """folder: for keys and files of one run; binds: folders of this machine that every host sees"""
        self.folder = folder
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key"))
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "other_key"))
        _make_base()
        _delete_links()
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{SUBNET}.254/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        self.hosts = [BootedHost(self, number, binds) for number in (1, 2)]
        (folder / "ssh_config").write_text(
            f"Host *\n IdentityFile {folder}/key\n IdentitiesOnly yes\n UserKnownHostsFile {folder}/known\n"
        )

    def boot(self) -> None:
        """Boot both, and know their keys."""
        for host in self.hosts:
            host.boot()
        for host in self.hosts:
            host.wait()
        self.learn_keys()

    def learn_keys(self) -> None:
        found = run("ssh-keyscan", "-t", "ed25519", *(host.address for host in self.hosts))
        (self.folder / "known").write_text(found.stdout)

    @contextlib.contextmanager
    def gateways(self) -> Iterator[list[str]]:
        """Reach both hosts' gateways, which listen on loopback there, from this machine."""
        found = [host.forwarded(GATEWAY) for host in self.hosts]
        try:
            yield [f"http://127.0.0.1:{port}" for port, _ in found]
        finally:
            for _, process in found:
                process.terminate()
                process.wait(30)

    def end(self) -> None:
        """Leave nothing but the base tree, which the next run uses."""
        for host in self.hosts:
            host.kill()
            shutil.rmtree(host.root, ignore_errors=True)
        _delete_links()


class BootedHost:
    """One host. Its tree outlives a kill, as a disk does."""

    def __init__(self, site: Site, number: int, binds: Sequence[str]) -> None:
        self.site, self.number, self.binds = site, number, binds
        self.name, self.address = f"lbh{number}", f"{SUBNET}.{number}"
        self.root = FOLDER / self.name
        self.process: subprocess.Popen[bytes] | None = None
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        run("tar", "-C", str(self.root), "-xf", str(FOLDER / "base.tar"), limit_s=MAKE_S)
        self._settle()
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", f"lbv{number}", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "link", "set", f"lbv{number}", "master", BRIDGE, "up")
        run("ip", "-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for card in ("eth0", "lo"):
            run("ip", "-n", self.name, "link", "set", card, "up")

    def _settle(self) -> None:
        (self.root / "etc/hostname").write_text(f"{self.name}\n")
        (self.root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        (self.root / "root").chmod(0o711)  # an engine of this machine's root can be read there
        key = (self.site.folder / "key.pub").read_text()
        for user in USERS:
            run("chroot", str(self.root), "useradd", "-m", "-s", "/bin/bash", user)
            folder = self.root / "home" / user / ".ssh"
            folder.mkdir(mode=0o700)
            (folder / "authorized_keys").write_text(key)
            run("chroot", str(self.root), "chown", "-R", f"{user}:{user}", f"home/{user}/.ssh")
        (self.root / "etc/sudoers.d/deploy").write_text("deploy ALL=(ALL) NOPASSWD: ALL\n")
        for old in (self.root / "etc/ssh").glob("ssh_host_*"):
            old.unlink()
        run("chroot", str(self.root), "ssh-keygen", "-A")

    def boot(self) -> None:
        """Begin to boot."""
        shutil.rmtree(f"/run/systemd/nspawn/propagate/{self.name}", ignore_errors=True)
        argv = ["systemd-nspawn", "-q", "-b", "-D", str(self.root), "--register=no", "--keep-unit"]
        argv += [f"--network-namespace-path=/run/netns/{self.name}", "--console=passive"]
        argv += [f"--bind-ro={bind}" for bind in self.binds]
        with (self.site.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until sshd answers."""
        end_s = time.monotonic() + BOOT_S
        while self.ssh("true", known=False).returncode:
            if time.monotonic() > end_s:
                raise RuntimeError(f"{self.name} did not boot")
            time.sleep(0.5)

    def ssh(
        self, command: str, *, user: str = "deploy", known: bool = True, limit_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there, as a person would."""
        checks = [] if known else ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        config = self.site.folder / "ssh_config"
        words = ["-F", str(config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", *checks, f"{user}@{self.address}"]
        return run("ssh", *words, command, check=False, limit_s=limit_s)

    def forwarded(self, port: int) -> tuple[int, subprocess.Popen[bytes]]:
        """Carry a port of this machine to a port of the host's loopback; returns it and ssh's process."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            local = int(free.getsockname()[1])
        words = ["ssh", "-F", str(self.site.folder / "ssh_config"), "-o", "ExitOnForwardFailure=yes", "-N"]
        words += ["-L", f"127.0.0.1:{local}:127.0.0.1:{port}", f"deploy@{self.address}"]
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        end_s = time.monotonic() + BOOT_S
        while not _listens(local):
            if time.monotonic() > end_s:
                raise RuntimeError(f"port {port} of {self.name} cannot be reached")
            time.sleep(0.1)
        return local, process

    def kill(self) -> None:
        """Cut its power."""
        if self.process is not None:
            # The host's first process outlives systemd-nspawn, and takes everything in the host with it.
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            with contextlib.suppress(OSError):
                for pid in children.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
            self.process = None
            time.sleep(1.0)

    def files(self) -> set[str]:
        """Files that a person would find there, but for logs, temporary ones of the system, and the data folder."""
        skipped = ["proc", "sys", "dev", "run", "root", "engines"]
        skipped += [f"var/{name}" for name in ("log", "lib", "cache", "tmp", "backups")]
        folders = [self.root / name for name in skipped] + [self.root / "home/deploy/.local"]
        found = set()
        for folder, names, files in os.walk(self.root):
            names[:] = [
                name for name in names if Path(folder, name) not in folders and not name.startswith("systemd-private")
            ]
            found |= {str(Path(folder, name).relative_to(self.root)) for name in (*names, *files)}
        return found


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5.0):
        return True
    return False


def _make_base() -> None:
    if (FOLDER / "base.tar").exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = FOLDER / "part.tar"
    run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES},{MORE}", "bookworm", str(part), limit_s=MAKE_S)
    part.rename(FOLDER / "base.tar")


def _delete_links() -> None:
    run("ip", "link", "del", BRIDGE, check=False)
    for number in (1, 2):
        run("ip", "link", "del", f"lbv{number}", check=False)
        run("ip", "netns", "del", f"lbh{number}", check=False)
