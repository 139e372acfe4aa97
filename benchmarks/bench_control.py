"""What commands and an idle node cost: CPU time and memory of each command, and CPU of the node's processes at rest.

usage: python benchmarks/bench_control.py [--replicas N] [--idle-s SECONDS] [--json FILE]

It starts a fleet of fake engines on a cluster of its own. Each command is the best of several runs, with the processes
that it starts; beside it stands the start of a bare interpreter, since a busy machine makes both dearer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LONGBOAT = (sys.executable, "-c", "from longboat.cli.app import main; main()")
TRIES = 3
SETTLE_S = 10.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
LIMITS = {"--help": 0.15, "completion": 0.15, "completion of models": 0.15}
LIMIT_S, LIMIT_MIB, LIMIT_IDLE = 0.5, 60.0, 0.1
LIMIT_IDLE_MANY, MANY = 0.5, 64
ENGINE = "longboat_fake"
FLEET = """name: bench
models:
  - {{name: a, source: 'builtin:tiny', engine: fake, replicas: {replicas}, resources: {{cpus: 0.01}}}}
gateway: {{port: {port}}}
"""


COMPLETED = {"completion": "longboat st", "completion of models": "longboat logs "}
"""Lines as typed, before the key that completes them."""


def completing(line: str) -> dict[str, str]:
    """Return the variables with which bash asks for the completion of a line."""
    return {"_LONGBOAT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}


def cost(words: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Run a program; CPU seconds and the largest memory of it and of its children, the best of several runs."""
    runs = [_run(words, env) for _ in range(TRIES)]
    return min(runs, key=lambda run: float(run["cpu_s"]))


def _run(words: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    began_s = time.monotonic()
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    told = process.stderr.read().decode(errors="replace")
    _, status, used = os.wait4(process.pid, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    if code:
        raise SystemExit(f"{' '.join(words[3:])}: exit {code}: {told}")
    return {
        "cpu_s": used.ru_utime + used.ru_stime,
        "rss_mib": used.ru_maxrss / 1024,
        "wall_s": time.monotonic() - began_s,
    }


def ticks_of_node(run: Path) -> dict[int, tuple[str, int, int]]:
    """Pid → title, CPU ticks and bytes of every process of the node with this run folder.

    Bytes are proportional: of memory that several processes share, each has its part. Ray's agents, and the modules of
    its dashboard, write their titles over their environment: they are found as children of others.
    """
    marks = (f"LONGBOAT_RUN={run}\0".encode(), f"LONGBOAT_NODE={run}\0".encode())
    found, parents, own = {}, {}, set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            env, line = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            rolled = (entry / "smaps_rollup").read_text()
        except OSError:
            continue
        pid = int(entry.name)
        found[pid] = (_title(line), int(fields[11]) + int(fields[12]), proportional_bytes(rolled))
        parents[pid] = int(fields[1])
        if any(mark in env for mark in marks) or f"{run}/ray".encode() in line:
            own.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return {pid: row for pid, row in found.items() if pid in own}


def proportional_bytes(rolled: str) -> int:
    """Read the proportional size out of a process's ``smaps_rollup``; 0 where it has no memory of its own."""
    return sum(int(line.split()[1]) << 10 for line in rolled.splitlines() if line.startswith("Pss:"))


def _title(line: bytes) -> str:
    """A short name for a process: Ray's own titles, the module that Python runs, or the program."""
    words = line.decode(errors="replace").rstrip("\0").split("\0")
    if any(word.endswith("process/keeper.py") for word in words[:6]):
        return "keepers"
    if words[0].startswith("ray-dashboard-"):
        return "dashboard's modules"
    if words[0].startswith("ray::"):
        return words[0].split(".")[0].split("#")[0].strip()
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    scripts = [word for word in words[1:] if word.endswith(".py")]
    return Path((scripts or words)[0]).name


def idle(run: Path, seconds: float) -> dict[str, Any]:
    """Share of a core that each kind of process takes while nothing happens, and its memory."""
    before = ticks_of_node(run)
    time.sleep(seconds)
    kinds: dict[str, dict[str, float]] = {}
    for pid, (title, ticks, size) in ticks_of_node(run).items():
        if pid in before:
            kind = kinds.setdefault(title, {"count": 0, "cores": 0.0, "mib": 0.0})
            kind["count"] += 1
            kind["cores"] += (ticks - before[pid][1]) / TICKS_PER_S / seconds
            kind["mib"] += size / MIB
    cores, mib = (sum(kind[what] for title, kind in kinds.items() if title != ENGINE) for what in ("cores", "mib"))
    return {"kinds": kinds, "cores": cores, "mib": mib}


def commands(file: str) -> dict[str, tuple[str, ...]]:
    """What is measured while the fleet is up; ``down`` follows at the end."""
    return {
        "--help": ("--help",),
        "status": ("status",),
        "status --json": ("status", "--json"),
        "usage": ("usage",),
        "logs": ("logs", "a"),
        "unchanged up": ("up", file, "--detach"),
    }


def measure(replicas: int, idle_s: float, run: Path) -> dict[str, Any]:
    """Start a fleet, measure it, and take it down, which is measured too."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = run / "fleet.yaml"
    file.write_text(FLEET.format(replicas=replicas, port=port))
    given = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env = {**given, "LONGBOAT_RUN": str(run), "LONGBOAT_HOME": str(run / "home"), "NO_COLOR": "1"}
    found: dict[str, Any] = {"bare interpreter": cost((sys.executable, "-c", ""), env)}
    try:
        _note("starting a fleet")
        _run((*LONGBOAT, "up", str(file), "--detach"), env)
        _run((*LONGBOAT, "status"), env)  # the first question loads what the next ones use
        for name, words in commands(str(file)).items():
            _note(name)
            found[name] = cost((*LONGBOAT, *words), env)
        for name, line in COMPLETED.items():
            found[name] = cost((str(Path(sys.executable).with_name("longboat")),), {**env, **completing(line)})
        _note("an idle node")
        time.sleep(SETTLE_S)
        rest = idle(run, idle_s)
        found["down"] = _run((*LONGBOAT, "down"), env)
    finally:
        subprocess.run((*LONGBOAT, "node", "stop"), env=env, stdout=subprocess.DEVNULL, check=False)
    found["down again"] = cost((*LONGBOAT, "down"), env)
    return {"replicas": replicas, "commands": found, "idle": rest}


def _note(what: str) -> None:
    print(f"measuring: {what}", file=sys.stderr, flush=True)


def show(found: Mapping[str, Any]) -> None:
    """Print the figures beside their limits."""
    bare_s = found["commands"]["bare interpreter"]["cpu_s"]
    print(f"{'COMMAND':20} {'CPU S':>7} {'LIMIT':>6} {'x BARE':>7} {'MIB':>6} {'WALL S':>7}")
    for name, row in found["commands"].items():
        limit_s = LIMITS.get(name, LIMIT_S)
        ratio = row["cpu_s"] / max(bare_s, 1e-3)
        over = " over" if name != "bare interpreter" and (row["cpu_s"] > limit_s or row["rss_mib"] > LIMIT_MIB) else ""
        figures = f"{row['cpu_s']:7.2f} {limit_s:6.2f} {ratio:7.1f} {row['rss_mib']:6.0f} {row['wall_s']:7.2f}"
        print(f"{name:20} {figures}{over}")
    idle = found["idle"]
    wanted = LIMIT_IDLE_MANY if found["replicas"] >= MANY else LIMIT_IDLE
    what = (
        f"{idle['cores']:.3f} of a core (wanted: {wanted}), {idle['mib']:.0f} MiB of memory, shared pages counted once"
    )
    print(f"\nidle with {found['replicas']} replicas, without the engines: {what}; load {os.getloadavg()[0]:.1f}")
    print(f"{'PROCESSES':44} {'COUNT':>5} {'CORES':>7} {'MIB':>7}")
    for title, kind in sorted(idle["kinds"].items(), key=lambda item: -item[1]["cores"]):
        print(f"{title[:44]:44} {kind['count']:5.0f} {kind['cores']:7.4f} {kind['mib']:7.0f}")


def main() -> None:
    """Measure, print, and write the figures where a file is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="lb-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        found = measure(options.replicas, options.idle_s, Path(folder))
    show(found)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
