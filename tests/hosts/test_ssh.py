"""The system's ssh against a real sshd: what is carried, and what is said where a host is not as expected."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_sshd import LocalSshd, sshd_program

from longboat.core.errors import ClusterError
from longboat.hosts.plan.facts import Manifest
from longboat.hosts.plan.problems import HostsRefusedError
from longboat.hosts.remote import ssh as ssh_module
from longboat.hosts.remote.bring_up import Observer, bring_up
from longboat.hosts.remote.look import answering, look_at, unreachable
from longboat.hosts.remote.ssh import Done, SshHost, connections
from longboat.spec.files.hosts_file import HostsFile

PROGRAM = sshd_program()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs sshd (Debian: openssh-server)")
SECRET = "0123456789abcdef"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSshd]:
    assert PROGRAM is not None
    sshd = LocalSshd(tmp_path_factory.mktemp("sshd"), PROGRAM)
    yield sshd
    sshd.end()


async def on_host(file: HostsFile, command: str, data: bytes = b"") -> Done:
    async with connections(file, file.hosts) as ssh:
        return await ssh["127.0.0.1"].run(command, data)


async def test_command_gets_its_input_and_returns_its_output(server: LocalSshd) -> None:
    done = await on_host(server.hosts_file(), "cat; echo told >&2; exit 7", b"given")
    assert (done.code, done.out, done.err) == (7, "given", "told\n")


async def test_file_arrives_whole_with_its_mode_and_in_no_argument(server: LocalSshd, tmp_path: Path) -> None:
    file, target = server.hosts_file(), tmp_path / "a file"
    async with connections(file, file.hosts) as ssh:
        await ssh["127.0.0.1"].put(str(target), SECRET.encode(), mode=0o600)
        seen = await ssh["127.0.0.1"].run("ps -eo args")
    assert target.read_text() == SECRET and target.stat().st_mode & 0o777 == 0o600
    assert SECRET not in seen.out
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


async def test_input_that_is_cut_replaces_no_file(
    server: LocalSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(process: asyncio.subprocess.Process, data: bytes | Path) -> None:
        assert process.stdin is not None and isinstance(data, bytes)
        process.stdin.write(data[:-1])
        process.stdin.close()

    file, target = server.hosts_file(), tmp_path / "a file"
    target.write_text("of before")
    monkeypatch.setattr(ssh_module, "_feed", cut)
    async with connections(file, file.hosts) as ssh:
        with pytest.raises(ClusterError, match=rf"cannot write {target}.*not all of its 1000000 bytes"):
            await ssh["127.0.0.1"].put(str(target), bytes(1_000_000))
    assert target.read_text() == "of before"
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


async def test_file_that_cannot_take_its_place_is_told_in_the_host_s_words(server: LocalSshd, tmp_path: Path) -> None:
    file = server.hosts_file()
    (tmp_path / "folder").mkdir()
    async with connections(file, file.hosts) as ssh:
        with pytest.raises(ClusterError, match=r"cannot write .*: mv: cannot overwrite directory") as caught:
            await ssh["127.0.0.1"].put(str(tmp_path / "folder"), b"text")
        with pytest.raises(ClusterError, match=r"(?i)cannot write .*missing.*: cannot create"):
            await ssh["127.0.0.1"].put(str(tmp_path / "missing/file"), b"text")
    assert "bytes" not in str(caught.value)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


async def test_parts_of_writers_that_died_are_deleted_and_others_stay(server: LocalSshd, tmp_path: Path) -> None:
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    for number in (gone.pid, os.getpid()):
        (tmp_path / f"a file.part.{number}").touch()
    file = server.hosts_file()
    async with connections(file, file.hosts) as ssh:
        await ssh["127.0.0.1"].put(str(tmp_path / "a file"), b"text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a file", f"a file.part.{os.getpid()}"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_part_of_another_user_s_writer_stays(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # that another user can reach
    folder.chmod(0o777)
    part = folder / f"file.part.{os.getpid()}"
    try:
        part.touch()
        script = ssh_module._writing(str(folder / "file"), 0o600, 4)
        words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script]
        subprocess.run(words, input=b"text", check=True, timeout=60)
        assert sorted(path.name for path in folder.iterdir()) == ["file", part.name]
    finally:
        shutil.rmtree(folder)


async def test_connection_is_shared_where_temporary_files_have_a_long_path(
    server: LocalSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (long := tmp_path / ("job-1234567-" * 8)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert (await on_host(server.hosts_file(), "echo here")).out == "here\n"


async def test_folder_arrives_through_tar(server: LocalSshd, tmp_path: Path) -> None:
    (tmp_path / "from/deep").mkdir(parents=True)
    (tmp_path / "from/deep/file").write_bytes(bytes(3_000_000))
    file = server.hosts_file()
    async with connections(file, file.hosts) as ssh:
        await ssh["127.0.0.1"].put_folder(tmp_path / "from", str(tmp_path / "to"))
    assert (tmp_path / "to/deep/file").stat().st_size == 3_000_000


async def test_probe_tells_of_a_bare_host_and_changes_nothing(server: LocalSshd) -> None:
    file = server.hosts_file()
    before = sorted(server.folder.rglob("*"))
    async with connections(file, file.hosts) as ssh:
        look = await look_at(file, file.hosts, ssh)
        facts = look.facts["127.0.0.1"]
        assert not look.problems and facts.manifest is None and facts.uid == os.getuid()
        assert ("127.0.0.1", server.port) in facts.listening
        assert facts.software.free_bytes > 0 and abs(facts.clock_ahead_s) < 20
        assert not await unreachable(file, {"127.0.0.1": "127.0.0.1"}, ssh)
    assert sorted(server.folder.rglob("*")) == before


async def test_host_whose_connection_breaks_once_is_looked_at_again(server: LocalSshd, tmp_path: Path) -> None:
    keys = server.folder / "authorized_keys"
    text, cut = keys.read_text(), tmp_path / "cut"
    first = f"[ -e {cut} ] || {{ touch {cut}; kill -9 $PPID; }}"
    keys.write_text(f'command="{first}; eval \\"$SSH_ORIGINAL_COMMAND\\"" {text}')
    file = server.hosts_file()
    try:
        async with connections(file, file.hosts) as ssh:
            look = await look_at(file, file.hosts, ssh)
    finally:
        keys.write_text(text)
    assert cut.exists() and not look.problems and look.facts["127.0.0.1"].uid == os.getuid()


async def test_manifest_of_a_host_is_found_again(server: LocalSshd, tmp_path: Path) -> None:
    file = server.hosts_file()
    software = server.folder / "software"
    software.mkdir()
    (software / "manifest.json").write_text('{"release": "r", "lingers": true}')
    try:
        async with connections(file, file.hosts) as ssh:
            look = await look_at(file, file.hosts, ssh)
    finally:
        (software / "manifest.json").unlink()
        software.rmdir()
    assert look.facts["127.0.0.1"].manifest == Manifest(release="r", lingers=True)


async def test_address_that_drops_packets_counts_as_unreachable(server: LocalSshd) -> None:
    file = server.hosts_file()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_server(("127.0.0.1", 0)) as closed:
        full_port, closed_port = full.getsockname()[1], closed.getsockname()[1]
        closed.close()
        # The kernel drops what goes to a listener whose queue is full.
        with socket.create_connection(("127.0.0.1", full_port)):
            async with connections(file, file.hosts) as ssh:
                ports = (server.port, closed_port, full_port)
                found = [await answering(ssh["127.0.0.1"], ["127.0.0.1", "127.0.0.2"], port) for port in ports]
    assert found == [{"127.0.0.1", "127.0.0.2"}, {"127.0.0.1", "127.0.0.2"}, {"127.0.0.2"}]


async def test_commands_on_many_hosts_need_few_descriptors(server: LocalSshd, monkeypatch: pytest.MonkeyPatch) -> None:
    file = server.hosts_file(port=1)  # where nothing listens
    hosts = [file.hosts[0].model_copy(update={"host": f"127.0.1.{number}"}) for number in range(1, 41)]
    monkeypatch.setattr("longboat.hosts.remote.ssh.MOST_AT_ONCE", 8)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 60, hard))
    try:
        async with connections(file, hosts) as ssh:
            found = await asyncio.gather(*(ssh[host.host].run("true") for host in hosts), return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {type(outcome) for outcome in found} == {ClusterError}


async def test_removal_deletes_what_up_made_and_nothing_else(server: LocalSshd, tmp_path: Path) -> None:
    for name in ("software/releases", "run/tmp", "data", "others"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("held")
    (tmp_path / "software/manifest.json").write_text("{}")
    folders = f"{tmp_path}/run\n{tmp_path}/gone"
    variables = {"SOFTWARE": f"{tmp_path}/software", "FOLDERS": folders, "LINGERS": "0"}
    file = server.hosts_file()
    async with connections(file, file.hosts) as ssh:
        done = await ssh["127.0.0.1"].script("remove", variables=variables)
    assert done.code == 0, done.err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["data", "file", "file", "others"]


async def test_host_is_known_after_a_cut_while_its_folders_are_made(server: LocalSshd, tmp_path: Path) -> None:
    file = server.hosts_file()
    (tmp_path / "data").write_text("a file ends the script where it makes this folder")
    folders = {"software": str(tmp_path / "software"), "data": str(tmp_path / "data")}
    file = file.model_copy(update={"folders": file.folders.model_copy(update=folders)})
    variables = {"SOFTWARE": folders["software"], "DATA": folders["data"], "RUN": f"{tmp_path}/run"}
    async with connections(file, file.hosts) as ssh:
        done = await ssh["127.0.0.1"].script("folders", variables={**variables, "MANIFEST": '{"folders": ["/run/x"]}'})
        facts = (await look_at(file, file.hosts, ssh)).facts["127.0.0.1"]
    assert done.code and not facts.foreign
    assert facts.manifest == Manifest(folders=("/run/x",)) and f"{tmp_path}/data" in facts.missing


async def test_run_folder_that_holds_files_is_found(server: LocalSshd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("held")
    file = server.hosts_file()
    file = file.model_copy(update={"folders": file.folders.model_copy(update={"run": str(tmp_path)})})
    async with connections(file, file.hosts) as ssh:
        look = await look_at(file, file.hosts, ssh)
    assert look.facts["127.0.0.1"].used_run == str(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"key": "other_key"}, "it accepts none of your keys"),
        ({"known": "nothing-known"}, "its host key is not known here"),
        ({"known": "wrong"}, "its host key is not the known one"),
        ({"port": 1}, "nothing answers on its SSH port"),
    ],
)
async def test_host_that_cannot_be_used_is_told_before_anything_changes(
    server: LocalSshd, changes: dict[str, object], expected: str
) -> None:
    other = (server.folder / "other_key.pub").read_text()
    (server.folder / "wrong").write_text(f"[127.0.0.1]:{server.port} {other}")
    file = server.hosts_file(**changes)  # type: ignore[arg-type]
    before = sorted(server.folder.iterdir())
    with pytest.raises(HostsRefusedError, match=expected):
        await bring_up(file, server.folder, Observer(lambda *_: None, lambda _: None))
    assert sorted(server.folder.iterdir()) == before


async def test_connection_that_breaks_half_way_is_told(server: LocalSshd) -> None:
    file = server.hosts_file()
    async with connections(file, file.hosts) as ssh:
        with pytest.raises(ClusterError, match="the connection broke"):
            await _cut(ssh["127.0.0.1"])


async def _cut(host: SshHost) -> None:
    """Kill the server's process of a session while a command runs there."""
    session = int((await host.run("echo $PPID")).out)
    running = asyncio.create_task(host.run("sleep 30"))
    await asyncio.sleep(1.0)
    os.kill(session, signal.SIGKILL)
    await running
