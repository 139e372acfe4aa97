"""The lab: a switch and its hosts, each a set of Linux namespaces behind a virtual cable.

    test process (outside)
    └── switch: user (without root), network, PID and mount namespace; a bridge with one port per host
        └── host: network, PID, mount and host name of its own; eth0 is plugged into the switch

All of it lives in the switch's PID namespace, whose first process ends when the test process does, however that ends.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

__all__ = ("Host", "HostProcess", "Lab", "why_unavailable")

HostProcess = subprocess.Popen[str]
"""A process in a host, held by a parent outside: signals are passed on, and killing it kills the process."""

_HERE = Path(__file__).parent
_SUBNET = "10.77.0"
_GATEWAY = f"{_SUBNET}.254"
_BUCKET_S, _SMALLEST_BUCKET_BYTES = 1e-4, 1600
_BOOT_DEADLINE_S = 20.0
_END_DEADLINE_S = 20.0
_PYTHON = (sys.executable, "-I", "-S")
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class _Namespaces:
    """A set of namespaces that a first process holds open, and the way into them."""

    def __init__(
        self, name: str, *, unshare: Sequence[str] = (), inside: _Namespaces | None = None, folder: Path | None = None
    ) -> None:
        self._control, theirs = socket.socketpair()
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        argv = ["unshare", *unshare, "--net", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc"]
        argv += [*_PYTHON, str(_HERE / "init.py"), str(theirs.fileno()), name]
        argv += [str(folder)] if folder else []
        self._process = subprocess.Popen(
            [*(inside.way_in() if inside else ()), *argv],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        theirs.close()
        self.pid = self._hear_pid()

    def _hear_pid(self) -> int:
        """Process id of the first process as we see it: the kernel translates it in the message's credentials."""
        self._control.settimeout(_BOOT_DEADLINE_S)
        data, ancillary, _flags, _address = self._control.recvmsg(16, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not data:
            message = self._process.communicate(timeout=_END_DEADLINE_S)[1]
            raise OSError(message.strip() or "the first process ended at once")
        pid: int = _CREDENTIALS.unpack(ancillary[0][2])[0]
        return pid

    def way_in(self) -> list[str]:
        return [*_PYTHON, str(_HERE / "enter.py"), str(self.pid)]

    def run(self, script: str, *arguments: str) -> str:
        """Run a shell script inside. Raises OSError with what it complained about."""
        argv = [*self.way_in(), "sh", "-euc", script, "sh", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_BOOT_DEADLINE_S, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise OSError(done.stderr.strip() or f"exit code {done.returncode} of: {script}")
        return done.stdout

    def pid_in_parent(self) -> str:
        """Process id of the first process as the namespace around it sees it."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
        return line.split()[-2]

    def kill(self) -> None:
        """SIGKILL everything inside; returns when nothing of it is left."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def end(self) -> None:
        """Have the first process end everything and clear up."""
        self._control.close()
        self._wait()

    def _wait(self) -> None:
        self._control.close()
        self._process.communicate(timeout=_END_DEADLINE_S)


class Host:
    """One machine of the lab.

    address: its IPv4 address on eth0; folder: its own disk (home, run folder, temporary files), which outlives a kill
    env: environment of what runs in it
    """

    def __init__(self, lab: Lab, number: int) -> None:
        self.number = number
        self.name = f"h{number}"
        self.address = f"{_SUBNET}.{number}"
        self.port = f"v{number}"  # its port of the switch
        self.card = f"02:00:0a:4d:00:{number:02x}"  # the hardware address of eth0, the same after each boot
        self.folder = lab.folder / self.name
        for part in ("home", "run", "tmp", "ray"):
            (self.folder / part).mkdir(parents=True, mode=0o700)
        self.env = _host_env(self.folder)
        self.namespaces: _Namespaces | None = None

    @property
    def is_up(self) -> bool:
        return self.namespaces is not None

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        output: int | None = subprocess.PIPE,
    ) -> HostProcess:
        """Start ``argv`` in this host; stdout and stderr come together, to a pipe or where ``output`` says."""
        return subprocess.Popen(
            [*self._inside().way_in(), *argv],
            env={**os.environ, **self.env, **(env or {})},
            cwd=cwd or self.folder,
            pass_fds=tuple(pass_fds),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 30.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` to its end. What it printed, stderr included, is in ``stdout``.

        Raises subprocess.TimeoutExpired (the process is killed), and AssertionError for another exit code than 0.
        """
        process = self.popen(argv, env=env)
        try:
            output = process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate(timeout=_END_DEADLINE_S)[0]
            raise subprocess.TimeoutExpired(argv, timeout, output) from None
        if check and process.returncode:
            raise AssertionError(f"{self.name}: {' '.join(argv)} ended with {process.returncode}:\n{output}")
        return subprocess.CompletedProcess(argv, process.returncode, output)

    def python(self, code: str, *arguments: str, timeout: float = 30.0) -> str:
        """Run Python code with the interpreter of the tests; what it printed."""
        output: str = self.run([sys.executable, "-c", code, *arguments], timeout=timeout).stdout
        return output

    def processes(self) -> dict[int, str]:
        """Process id (as the host sees it) → command line, of all that runs in this host but its first process."""
        script = r'cd /proc; for p in [0-9]*; do printf "%s %s\n" $p "$(tr "\0" " " <$p/cmdline 2>/dev/null)"; done'
        pairs = (line.partition(" ")[::2] for line in self._inside().run(script).splitlines())
        numbered = ((int(pid), text.strip()) for pid, text in pairs if pid.isdecimal())  # a command may have lines, too
        return {pid: text for pid, text in numbered if pid != 1 and "cd /proc" not in text and text}

    def _inside(self) -> _Namespaces:
        if self.namespaces is None:
            raise AssertionError(f"host {self.name} is not up")
        return self.namespaces


def _host_env(folder: Path) -> dict[str, str]:
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "LONGBOAT_RUN": str(folder / "run"),
        "LONGBOAT_HOME": os.environ.get("LONGBOAT_HOME") or f"{home}/longboat",
        "RAY_TMPDIR": str(folder / "ray"),
    }


_HOST_SETUP = """
ip link set lo up
ip addr add "$1/24" dev eth0
ip link set eth0 up
ip route add default via "$2"
mount -t tmpfs tmpfs /dev/shm
mount --bind "$3/hosts" /etc/hosts
mount --bind "$3/resolv.conf" /etc/resolv.conf
"""
_CABLE = """
ip link del "$1" 2>/dev/null || true
ip link add "$1" type veth peer name eth0 address "$3" netns "$2"
ip link set "$1" master br0 up
"""
# The kernel takes the cable of a dead host away only after a while, and its neighbours remember the card's address.
_SWITCH_SETUP = """
ip link set lo up
ip link add br0 type bridge
ip addr add "$1/24" dev br0
ip link set br0 up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
"""
# Forwarding without routes answers "unreachable" at once, so that nobody waits for a name server. arp_ignore keeps
# the switch silent on ports that are out of the bridge, which is how a cable is cut.

_LOSE_SETUP = """
ip rule show | grep -q "^0:" && { ip rule add pref 10 lookup local; ip rule del pref 0; }
for end in dport sport; do ip rule add pref 5 iif eth0 ipproto tcp $end "$1" blackhole; done
"""
# What arrives is looked up in the rules before the host takes it; the rule for its own addresses must come later.


class Lab:
    """``num_hosts`` hosts on one switch. A context manager; everything is gone when it is left.

    rate_bits_per_s: limit of each host's cable, each way; None: as fast as the machine
    bucket_bytes: that may pass at once; None: little, for the time of single messages. Bulk costs less CPU with 64 KiB
    """

    def __init__(
        self, num_hosts: int = 2, *, rate_bits_per_s: int | None = None, bucket_bytes: int | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nl", dir="/tmp"))  # short: socket paths end at 107 bytes
        self._forwards: list[subprocess.Popen[str]] = []
        self.hosts: list[Host] = []
        try:
            self._switch = _Namespaces("switch", unshare=_user_flags(), folder=self.folder)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        try:
            self._switch.run(_SWITCH_SETUP, _GATEWAY)
            self._write_names(num_hosts)
            self.hosts += [Host(self, number) for number in range(1, num_hosts + 1)]
            for host in self.hosts:
                self.boot(host)
                if rate_bits_per_s is not None:
                    self.set_rate(host, rate_bits_per_s, bucket_bytes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts and the switch, and remove the lab's folder."""
        self._switch.end()
        for host in self.hosts:
            if host.namespaces is not None:
                host.namespaces.end()
                host.namespaces = None
        for relay in self._forwards:
            relay.communicate(timeout=_END_DEADLINE_S)

    def _write_names(self, num_hosts: int) -> None:
        names = [f"{_SUBNET}.{number} h{number}" for number in range(1, num_hosts + 1)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        (self.folder / "resolv.conf").write_text("")

    def boot(self, host: Host) -> None:
        """Start a host (again, after a kill), with its cable plugged in and its disk as it was."""
        assert not host.is_up
        host.namespaces = _Namespaces(host.name, inside=self._switch)
        peer = host.namespaces.pid_in_parent()
        self._switch.run(_CABLE, host.port, peer, host.card)
        host.namespaces.run(_HOST_SETUP, host.address, _GATEWAY, str(self.folder))

    def cut(self, host: Host) -> None:
        """Packets from and to this host vanish; nobody is told: cards stay up, no connection is reset."""
        self._switch.run('ip link set "$1" nomaster', host.port)

    def restore(self, host: Host) -> None:
        """Undo ``cut``."""
        self._switch.run('ip link set "$1" master br0', host.port)

    def lose(self, port: int) -> None:
        """Packets of connections with this TCP port vanish where they arrive; all others pass. Nothing undoes it."""
        for host in self.hosts:
            host._inside().run(_LOSE_SETUP, str(port))

    def set_rate(self, host: Host, rate_bits_per_s: int, bucket_bytes: int | None = None) -> None:
        """Limit a host's cable to this rate, each way (token bucket).

        The bucket is small, so that also a message of a few kilobytes takes its time.
        """
        shape = 'tc qdisc replace dev "$1" root tbf rate "$2"bit burst "$3"b latency 200ms'
        bucket_bytes = bucket_bytes or max(_SMALLEST_BUCKET_BYTES, round(rate_bits_per_s / 8 * _BUCKET_S))
        for namespaces, device in ((self._switch, host.port), (host._inside(), "eth0")):
            namespaces.run(shape, device, str(rate_bits_per_s), str(bucket_bytes))

    def kill_host(self, host: Host) -> None:
        """SIGKILL all processes of a host at once; its kernel still closes their connections. ``boot`` undoes it."""
        host._inside().kill()
        host.namespaces = None

    def power_off(self, host: Host) -> None:
        """Like ``kill_host``, but nothing more comes out of the host's cable."""
        self.cut(host)
        self.kill_host(host)

    def forward(self, host: Host, port: int, address: str | None = None) -> int:
        """A port of 127.0.0.1 outside the lab that leads to ``port`` of a host (at ``address``, else its own)."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            relay = [sys.executable, "-I", str(_HERE / "relay.py"), str(listener.fileno())]
            argv = [*relay, address or host.address, str(port)]
            self._forwards.append(host.popen(argv, pass_fds=(listener.fileno(),), output=subprocess.DEVNULL))
            local_port: int = listener.getsockname()[1]
        return local_port


@functools.cache
def _user_flags() -> tuple[str, ...]:
    """What ``unshare`` needs besides: nothing where we may make namespaces, else a user namespace.

    Raises OSError with the reason where neither works.
    """
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing or not hasattr(os, "pidfd_open"):
        raise OSError(
            f"{missing[0] if missing else 'pidfd_open'} is not there: the lab needs Linux, iproute2, util-linux"
        )
    reason = ""
    for flags in ((), ("--user", "--map-root-user")):
        if reason := _complaint(flags):
            continue
        return flags
    raise OSError(f"this kernel or container lets us make no network namespaces: {reason}")


def _complaint(flags: tuple[str, ...]) -> str:
    trial = "ip link add br0 type bridge && ip link add v0 type veth peer name v1 && mount -t tmpfs tmpfs /dev/shm"
    argv = ["unshare", *flags, "--net", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run([*argv, "sh", "-c", trial], capture_output=True, text=True, timeout=_BOOT_DEADLINE_S)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


def why_unavailable() -> str | None:
    """Why labs cannot be made here, in one sentence; None: they can."""
    try:
        _user_flags()
    except OSError as error:
        return str(error)
    return None
