"""Keeps one rank: starts the engine's main process, ends the whole rank when its owner goes, and reports how it ended.

Runs as a script without anything installed (``python -I keeper.py --lifeline FD --status FD -- argv…``) and, after a
zygote's fork, as a function (:func:`keep`). Standard library only, one thread. A node has as many keepers as ranks, so
it imports little: ``re``, ``json``, ``signal``, ``contextlib`` and what these import would double a keeper's memory.

    owner ──lifeline pipe──► keeper (session leader, subreaper) ──► main (own process group) ──► its children
          ◄──status pipe───

Commands on the lifeline are bytes: ``T`` or ``T seconds`` ends the rank gently, ``K`` immediately, as does end of file.
``L seconds`` is a lease: it ends the rank immediately unless another lease comes within that time.
The status pipe carries one JSON object per line: ``started`` first, ``exit`` when nothing of the rank is left.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

TYPE_CHECKING = False  # of the module typing, which is not imported
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
else:
    import _signal as signal

__all__ = (
    "DEFAULT_GRACE_S",
    "MARK_SPACE",
    "descendants",
    "die_with_parent",
    "environment_of",
    "keep",
    "reap",
    "set_name",
    "show_env_tags",
)

DEFAULT_GRACE_S = 10.0
MARK_SPACE = "LONGBOAT_MARK_SPACE"
USAGE = """usage: keeper.py --lifeline FD --status FD [--grace SECONDS] -- ARGV
       keeper.py --detach LOG -- ARGV
       keeper.py --reap NAME=VALUE… [--older-than-generation N]"""
_OF_ONE_VALUE = ("--lifeline", "--status", "--grace", "--detach", "--older-than-generation")
_OPTIONS = (*_OF_ONE_VALUE, "--reap")
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.005
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)
_REAP_ROUNDS = 200
_LOOK_AT_LEAST_EVERY_S = 60.0
_PAUSE_S = 1.0
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108
_ENGINE_MEMORY = (  # of Python, vLLM, SGLang, torch, NCCL and CUDA
    *("psm_", "wnsm_", "sem.mp-", "vllm_", "VLLM_OBJECT_STORAGE_SHM_BUFFER", "sgl_shm_", "sglang_loads_"),
    *("torch_", "nccl-", "cuda.shm."),
)
_DELETED = " (deleted)"
_MOST_SCRATCH = 107 - len("/4194304/01234567-0123-0123-0123-0123456789ab")  # vLLM names its sockets by such numbers


def _prctl(option: int, value: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def set_name(name: str) -> None:
    """Name this process for ``ps`` and ``top`` (15 bytes at most)."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def die_with_parent(parent_pid: int) -> None:
    """Make the kernel SIGKILL this process when the thread that forked it ends. Dies now if that already ended."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def show_env_tags(env_tags: Mapping[str, str]) -> None:
    """Write ``env_tags`` into what /proc shows as the environment of this process and of its forks.

    The kernel shows the memory that the process was started with, whatever ``os.environ`` says later. A process that is
    going to fork is therefore started with ``MARK_SPACE``, space to write in. Has no effect where that is missing.
    """
    start, end = (int(word) for word in _stat_fields(os.getpid())[47:49])
    shown = ctypes.string_at(start, end - start)
    at = shown.find(MARK_SPACE.encode() + b"=")
    size = shown.find(b"\0", at) - at
    text = b"\0".join(f"{name}={value}".encode() for name, value in env_tags.items())
    if at >= 0 and len(text) <= size:
        ctypes.memmove(start + at, text.ljust(size, b"\0"), size)


# --- processes -------------------------------------------------------------------------------------------------------


def _stat_fields(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _process_table() -> dict[int, tuple[int, int]]:
    """Return parent and session of every living process (no zombies)."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                state, parent, _group, session = _stat_fields(int(name))[:4]
            except (OSError, ValueError):
                continue  # it ended
            if state not in "ZX":
                table[int(name)] = (int(parent), int(session))
    return table


def descendants(root: int, table: Mapping[int, tuple[int, int]] | None = None) -> set[int]:
    """Return the living processes below ``root``, at any depth, without ``root``."""
    table = _process_table() if table is None else table
    children: dict[int, list[int]] = {}
    for pid, (parent, _session) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    front = [root]
    while front:
        fresh = [pid for parent in front for pid in children.get(parent, ()) if pid not in found]
        found.update(fresh)
        front = fresh
    return found - {root}


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


# --- what a killed rank would leave ----------------------------------------------------------------------------------


def shared_memory_of(pids: Iterable[int], since_s: float) -> set[str]:
    """Return shared memory that these processes have mapped and that engines made for themselves since ``since_s``.

    A killed process cannot unlink what it made, and it stays in memory. Only names that engines and their libraries
    give are included: a model that a user keeps in /dev/shm is mapped too.
    """
    found: set[str] = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
                found.update(_engine_memory(file))
        except OSError:
            pass
    return {path for path in found if _changed_at(path) >= since_s}


def _engine_memory(maps: Iterable[str]) -> Iterator[str]:
    """Find the shared memory of engines in the lines of /proc/PID/maps."""
    for line in maps:
        _, mark, name = line.rstrip("\n").removesuffix(_DELETED).rpartition(_SHARED_MEMORY)
        if mark and name.startswith(_ENGINE_MEMORY) and "/" not in name:
            yield mark + name


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0.0


def unlink_all(paths: Iterable[str]) -> None:
    """Remove files that still exist."""
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass


def _remove_folder(path: str) -> None:
    try:
        import shutil
    except (ImportError, OSError):  # Python's folder is gone, or descriptors are used up; the exit must be reported
        return
    shutil.rmtree(path, ignore_errors=True)


def _scratch_folder(run: str) -> str:
    """Make the folder of a run folder's scratch folders: elsewhere, where paths of sockets would be too long."""
    usual = os.path.join(run, "scratch")
    os.makedirs(usual, mode=0o700, exist_ok=True)
    if len(os.fsencode(usual)) <= _MOST_SCRATCH:
        return usual
    own = os.stat(run)  # each run folder has its own: another one may be of other processes
    folder = f"/tmp/longboat-{os.getuid()}-{own.st_dev:x}-{own.st_ino:x}"  # noqa: S108
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    is_own = found.st_uid == os.getuid() and found.st_mode & 0o170077 == 0o040000  # a folder that no other user enters
    return folder if is_own else usual


class _Scratch:
    """A folder for temporary files of one rank (sockets above all), removed with it. None without a run folder."""

    def __init__(self, run: str | None) -> None:
        self.path = self._made(run) if run and os.path.isdir(run) else None

    def _made(self, run: str) -> str:
        while True:
            folder = _scratch_folder(run)
            path = os.path.join(folder, str(os.getpid()))
            self._sweep(folder)
            try:
                os.mkdir(path, 0o700)
            except FileNotFoundError:  # another rank's keeper has just removed the empty folder
                continue
            except FileExistsError:
                pass
            return path

    def _sweep(self, folder: str) -> None:
        """Remove what killed keepers left, also those that a container's first process does not collect."""
        names = os.listdir(folder) if os.path.isdir(folder) else ()
        table = _process_table() if names else {}
        for name in names:
            if name.isdigit() and int(name) not in table:
                _remove_folder(os.path.join(folder, name))

    def use(self) -> None:
        """Make this process, and those that it starts, put temporary files here."""
        if self.path:
            os.environ["TMPDIR"] = self.path

    def remove(self) -> None:
        """Remove the folder, and the one that it lies in where no other rank uses that."""
        if self.path:
            _remove_folder(self.path)
            try:
                os.rmdir(os.path.dirname(self.path))
            except OSError:
                pass


# --- keeping ---------------------------------------------------------------------------------------------------------


class _Keeper:  # size: one loop over one rank; what it watches is its state
    """The loop of one keeper.

    It has more than 12 attributes because it is the whole state of a process that must stay one file.
    """

    def __init__(self, lifeline_fd: int, status_fd: int, grace_s: float, run: str | None) -> None:
        self.began_s = time.time() - 1.0  # the clock of files is coarser by up to a second
        self.scratch = _Scratch(run)
        self.memory: set[str] = set()
        self.look_every_s = 0.5
        self.look_at_s = time.monotonic() + self.look_every_s
        self.lifeline_fd = lifeline_fd
        self.status_fd = status_fd
        self.grace_s = grace_s
        self.main_pid = 0
        self.main_status: int | None = None  # wait status of the main process once it ended
        self.kill_at_s: float | None = None
        self.lease_until_s: float | None = None
        self.wake_read_fd, self.wake_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self, main: Callable[[], None], on_started: Callable[[int], None]) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
        set_name("longboat-keeper")
        self._listen_to_signals()
        self.main_pid = self._fork(main)
        self._say({"event": "started", "pid": self.main_pid, "keeper_pid": os.getpid()})
        on_started(self.main_pid)
        why = self._watch()
        self._wipe()
        if why:
            print(f"longboat keeper: {why}; the rank was ended", file=sys.stderr, flush=True)
        self._say(self._exit_event())

    def _listen_to_signals(self) -> None:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write_fd, warn_on_full_buffer=False)

    def _fork(self, main: Callable[[], None]) -> int:
        keeper_pid = os.getpid()
        # A signal for the child waits until the child has dropped the keeper's handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_IGNORED, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.setpgid(0, 0)  # signals to its own group do not reach the keeper
            die_with_parent(keeper_pid)
            for fd in (self.lifeline_fd, self.status_fd, self.wake_read_fd, self.wake_write_fd):
                os.close(fd)
            self.scratch.use()
            main()
        except BaseException as error:  # a forked child never returns into its parent's stack
            print(f"longboat keeper: cannot start the engine: {error!r}", file=sys.stderr, flush=True)
        os._exit(127)

    def _watch(self) -> str:
        """Wait until the main process ended (returns "") or everything must end now (returns the reason)."""
        poll = select.poll()
        poll.register(self.lifeline_fd, select.POLLIN)
        poll.register(self.wake_read_fd, select.POLLIN)
        while True:
            patience_ms, began_s = self._patience_ms(), time.monotonic()
            ready = {fd for fd, _ in poll.poll(patience_ms)}
            self._forgive_pause(time.monotonic() - began_s - patience_ms / 1000)
            self._note_memory()
            if self.wake_read_fd in ready and signal.SIGTERM in os.read(self.wake_read_fd, 4096):
                self._end_gently(self.grace_s)
            if self.lifeline_fd in ready and (why := self._obey(os.read(self.lifeline_fd, 4096))):
                return why
            self._collect()
            if self.main_status is not None:
                return ""
            if self.kill_at_s is not None and time.monotonic() >= self.kill_at_s:
                return "it did not end within its grace time"
            if self.lease_until_s is not None and time.monotonic() >= self.lease_until_s:
                return "its owner is silent"

    def _patience_ms(self) -> float:
        until_s = min(at_s for at_s in (self.look_at_s, self.kill_at_s, self.lease_until_s) if at_s is not None)
        return max(0.0, until_s - time.monotonic()) * 1000 + 1

    def _forgive_pause(self, late_s: float) -> None:
        """Extend the lease by the time in which this process did not run: its owner may have paused with it."""
        if self.lease_until_s is not None and late_s > _PAUSE_S:
            self.lease_until_s += late_s

    def _note_memory(self) -> None:
        """Note the rank's shared memory now and then: after a sudden death it could not be found."""
        if time.monotonic() >= self.look_at_s:
            self.memory |= shared_memory_of(descendants(os.getpid()), self.began_s)
            self.look_every_s = min(self.look_every_s * 2, _LOOK_AT_LEAST_EVERY_S)
            self.look_at_s = time.monotonic() + self.look_every_s

    def _obey(self, data: bytes) -> str:
        """Follow the commands in ``data``; return the reason where everything must end now, else ""."""
        if not data:
            return "its owner is gone"
        if b"K" in data:
            return "its owner ordered it to end now"
        words = data.split()
        for word, after in zip(words, [*words[1:], b""], strict=True):
            seconds = float(after) if after[:1].isdigit() else None
            if word == b"L" and seconds is not None:
                self.lease_until_s = time.monotonic() + seconds
            elif word == b"T":
                self._end_gently(self.grace_s if seconds is None else seconds)
        return ""

    def _end_gently(self, grace_s: float) -> None:
        at_s = time.monotonic() + grace_s
        self.kill_at_s = at_s if self.kill_at_s is None else min(at_s, self.kill_at_s)
        self.memory |= shared_memory_of(descendants(os.getpid()), self.began_s)  # some engines end by SIGKILL of all
        _kill(self.main_pid, signal.SIGTERM)

    def _collect(self) -> bool:
        """Reap the ended children (orphans of the rank become this process's). False: no child is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.main_pid:
                    self.main_status = status
        except ChildProcessError:
            return False

    def _wipe(self) -> None:
        """SIGKILL the rank until nothing of it is left; processes with their own session land here too (subreaper)."""
        self.memory |= shared_memory_of(descendants(os.getpid()), self.began_s)
        while self._collect():
            for pid in descendants(os.getpid()):
                _kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        unlink_all(self.memory)
        self.scratch.remove()

    def _exit_event(self) -> dict[str, int | str | None]:
        code = os.waitstatus_to_exitcode(self.main_status or 0)
        return {"event": "exit", "returncode": code if code >= 0 else None, "signal": -code if code < 0 else None}

    def _say(self, event: Mapping[str, int | str | None]) -> None:
        try:
            os.write(self.status_fd, _json_line(event))
        except OSError:
            pass  # the reader is gone


def _json_line(event: Mapping[str, int | str | None]) -> bytes:
    """Write an event whose words need no escape."""
    words = {name: f'"{value}"' if isinstance(value, str) else str(value) for name, value in event.items()}
    text = ", ".join(f'"{name}": {word}' for name, word in words.items())
    return f"{{{text}}}\n".replace(": None", ": null").encode()


def keep(
    main: Callable[[], None],
    *,
    lifeline_fd: int,
    status_fd: int,
    grace_s: float = DEFAULT_GRACE_S,
    run: str | None = None,
    on_started: Callable[[int], None] = lambda _pid: None,
) -> None:
    """Be the keeper of ``main`` until nothing of it is left. Call it in a fresh process of one thread.

    main: runs in its own process; must end that process (exec or ``os._exit``), returning counts as failure
    run: the node's run folder, where the rank gets a folder for its temporary files (None: none)
    on_started: called with the main process's pid, in the keeper
    """
    _Keeper(lifeline_fd, status_fd, grace_s, run).run(main, on_started)


# --- reaping ---------------------------------------------------------------------------------------------------------


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that /proc shows of ``pid``; empty where it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            rows = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (row.decode(errors="replace").partition("=") for row in rows if b"=" in row)
    return {name: value for name, _, value in pairs}


def _is_tagged(pid: int, env_tags: Mapping[str, str], older_than: int | None) -> bool:
    env = environment_of(pid)
    if any(env.get(name) != value for name, value in env_tags.items()):
        return False
    generation = env.get("LONGBOAT_GENERATION", "")
    return older_than is None or (generation.isdigit() and int(generation) < older_than)


def _lineage(pid: int, table: Mapping[int, tuple[int, int]]) -> set[int]:
    line = set()
    while pid in table and pid not in line:
        line.add(pid)
        pid = table[pid][0]
    return line


def _find_tagged(env_tags: Mapping[str, str], older_than: int | None) -> set[int]:
    table = _process_table()
    spared = _lineage(os.getpid(), table)
    tagged = {pid for pid in table if pid not in spared and _is_tagged(pid, env_tags, older_than)}
    # A child may have hidden its environment, but it is in its keeper's session, or below a tagged process. A keeper
    # leads its session: one whose leader carries no tag, or that of the caller, is none of a keeper. Session 0 is led
    # from outside of a container, and has all that was started from there.
    sessions = {table[pid][1] for pid in tagged}
    sessions -= {session for session in sessions if session in table and session not in tagged}
    sessions -= {0, *(table[pid][1] for pid in spared)}
    found = tagged | {pid for pid, (_, session) in table.items() if session in sessions}
    for pid in tagged:
        found |= descendants(pid, table)
    return found - spared


def reap(env_tags: Mapping[str, str], older_than_generation: int | None = None) -> list[int]:
    """SIGKILL every process that carries all ``env_tags`` in its environment, with its descendants and session.

    env_tags: at least one (``LONGBOAT_GANG=model/replica``…); the caller and its ancestors are spared
    older_than_generation: only processes whose ``LONGBOAT_GENERATION`` is below it
    Returns the pids, ascending. Raises ValueError for no tags, TimeoutError where a process cannot be killed.
    """
    if not env_tags:
        raise ValueError("no tags were given: every process would match")
    killed: set[int] = set()
    memory: set[str] = set()
    for _ in range(_REAP_ROUNDS):
        found = _find_tagged(env_tags, older_than_generation)
        if not found:
            unlink_all(memory)
            return sorted(killed)
        memory |= shared_memory_of(found, 0.0)
        for pid in found:
            _kill(pid, signal.SIGKILL)
        killed |= found
        time.sleep(_POLL_S)
    raise TimeoutError(f"these processes survive SIGKILL: {sorted(found)}")


# --- script ----------------------------------------------------------------------------------------------------------


def _detach(on_leaving: Callable[[int], None] = lambda _pid: None) -> None:
    """Detach from the parent, so that what kills the owner's children does not kill the keeper."""
    if pid := os.fork():
        on_leaving(pid)
        os._exit(0)
    os.setsid()


def _keep_command(argv: Sequence[str], lifeline_fd: int, status_fd: int, grace_s: float) -> None:
    for fd in (lifeline_fd, status_fd):
        os.set_inheritable(fd, False)
    _detach()
    keep(
        lambda: os.execvp(argv[0], list(argv)),  # noqa: S606
        lifeline_fd=lifeline_fd,
        status_fd=status_fd,
        grace_s=grace_s,
        run=os.environ.get("LONGBOAT_RUN"),
    )


def _detach_command(argv: Sequence[str], log_path: str) -> None:
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _detach(lambda pid: print(pid, flush=True))
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    os.execvp(argv[0], list(argv))  # noqa: S606


def _env_tags(words: Iterable[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _options(words: Iterable[str]) -> dict[str, list[str]]:
    """Return each option with its values. Raises ValueError for words that are none of ``_OPTIONS``.

    A mistyped limit must not be passed over: without it, ``--reap`` ends more.
    """
    options: dict[str, list[str]] = {}
    values: list[str] | None = None
    for word in words:
        if word.startswith("--"):
            name, has_value, value = word.partition("=")
            if name not in _OPTIONS:
                raise ValueError(f"unknown option {name}")
            values = options[name] = [value] if has_value else []
        elif values is None:
            raise ValueError(f"{word} follows no option")
        else:
            values.append(word)
    for name, values in options.items():
        if not values or (name in _OF_ONE_VALUE and len(values) != 1):
            raise ValueError(f"{name} takes {'one value' if name in _OF_ONE_VALUE else 'tags'}")
    return options


def _order(options: Mapping[str, list[str]], argv: Sequence[str]) -> Callable[[], None]:
    """Return what the options order. Raises KeyError and ValueError where they order nothing."""
    if tags := options.get("--reap"):
        limits = [int(word) for word in options.get("--older-than-generation", ())]
        return lambda: print(*reap(_env_tags(tags), *limits))
    if not argv:
        raise ValueError("nothing is ordered")
    if "--detach" in options:
        return lambda: _detach_command(argv, *options["--detach"])
    (lifeline,), (status,), (grace,) = options["--lifeline"], options["--status"], options.get("--grace", [""])
    lifeline_fd, status_fd, grace_s = int(lifeline), int(status), float(grace or DEFAULT_GRACE_S)
    return lambda: _keep_command(argv, lifeline_fd, status_fd, grace_s)


def main(words: Sequence[str]) -> int:
    """Run the script's command line; see the module's docstring."""
    split = words.index("--") if "--" in words else len(words)
    try:
        run = _order(_options(words[:split]), list(words[split + 1 :]))
    except (KeyError, ValueError) as error:
        print(f"{USAGE}\nkeeper.py: {error!r}", file=sys.stderr)
        return 2
    run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
