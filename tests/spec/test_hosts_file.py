"""The hosts file: what it may say, its mistakes by path, and edits that leave its comments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from longboat.core.errors import UserInputError
from longboat.spec.files.cluster_file import load_cluster_file
from longboat.spec.files.hosts_edit import with_host, without_host
from longboat.spec.files.hosts_file import load_hosts_file

WHEEL = "install: {wheel: a.whl}\n"
LIST = f"""# my hosts
hosts:
  - one   # the head
  - host: two
    labels:
      rack: b

  # a comment
  - three
{WHEEL}"""


def problems(text: str) -> list[str]:
    with pytest.raises(UserInputError) as caught:
        load_hosts_file(text, "hosts.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_names_are_hosts_and_the_first_is_the_head() -> None:
    file = load_hosts_file(LIST, "hosts.yaml")
    assert [(host.host, host.role) for host in file.hosts] == [("one", "head"), ("two", "worker"), ("three", "worker")]
    assert file.head.host == "one"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hosts: [a]\n", ["install: install is missing"]),
        (f"hosts: [a, a]\n{WHEEL}", ["hosts[1].host: 'a' is hosts[0] already"]),
        (
            f"hosts: [a, {{host: b, role: boss}}]\n{WHEEL}",
            ["hosts[1].role: 'boss' is not one of: head, worker"],
        ),
        (f"hosts: [{{host: a, role: worker}}]\n{WHEEL}", ["hosts: no host is the head"]),
        (f"hosts: [{{host: a, rle: head}}]\n{WHEEL}", ["hosts[0].rle: there is no field 'rle' here"]),
        (f"hosts: ['-oProxyCommand=x']\n{WHEEL}", ["hosts[0].host: '-oProxyCommand=x' is not a host for ssh"]),
        (f"hosts: [a]\nfolders: {{data: /var}}\n{WHEEL}", ["folders.data: '/var' belongs to the system"]),
        (
            f"hosts: [a]\nfolders: {{run: '~/../x'}}\n{WHEEL}",
            ["folders.run: '~/../x' is not the path of a folder on the hosts"],
        ),
        (
            f"hosts: [a]\nfolders: {{software: ~/lb, data: ~/lb/data}}\n{WHEEL}",
            ["folders: data '~/lb/data' lies in software '~/lb', which longboat cluster remove deletes"],
        ),
        (
            f"hosts: [a]\nfolders: {{data: ~/lb, run: ~/lb}}\n{WHEEL}",
            ["folders: data '~/lb' lies in run '~/lb', which longboat cluster remove deletes"],
        ),
        (
            f"hosts: [a]\nfolders: {{software: /srv/lb/software, run: /srv/lb}}\n{WHEEL}",
            ["folders: software '/srv/lb/software' lies in run '/srv/lb', which longboat cluster remove deletes"],
        ),
        (
            "hosts: [a]\nfolders: {data: ~/lb, software: ~/lb, run: ~/../x}\ninstall: {bundle: 1}\n",
            [
                "folders: data '~/lb' lies in software '~/lb', which longboat cluster remove deletes",
                "folders.run: '~/../x' is not the path of a folder on the hosts",
                "install.bundle: 1 is not text",
            ],
        ),
        (
            f"hosts: [{{host: a, cpus: 1.5, role: worker}}, {{host: a, gpus: 0.5, role: worker}}]\n{WHEEL}",
            [
                "hosts[0].cpus: 1.5 is not a whole number",
                "hosts[1].gpus: 0.5 is not a whole number",
                "hosts[1].host: 'a' is hosts[0] already",
                "hosts: no host is the head",
            ],
        ),
        (f"hosts: []\n{WHEEL}", ["hosts: it is empty"]),
        ("hosts: [a]\ninstall: {wheel: a.whl, index: b}\n", ["install: wheel and index are given"]),
        (
            f"hosts: [a]\nport: 80\nusr: x\n{WHEEL}",
            ["port: 80 is less than the smallest allowed, 1024", "usr: there is no field 'usr' here"],
        ),
        (
            f"hosts: [{{host: a, labels: [x], sudo: 7}}]\nuser: 7\npython: x\n{WHEEL}",
            [
                "hosts[0].sudo: 7 is not true or false",
                "hosts[0].labels: a list is not a mapping",
                "user: 7 is not text",
                "python: 'x' is not a version of Python",
            ],
        ),
    ],
)
def test_mistakes_are_told_with_their_paths(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


@pytest.mark.parametrize("text", ["- a\n- b\n", "a\n", "3\n"])
@pytest.mark.parametrize("load", [load_hosts_file, load_cluster_file])
def test_file_that_is_no_mapping_is_refused(text: str, load: Callable[[str, str], object]) -> None:
    with pytest.raises(UserInputError, match="is not a mapping"):
        load(text, "file.yaml")


def test_a_cluster_file_with_a_wrong_node_is_not_empty_besides() -> None:
    with pytest.raises(UserInputError) as caught:
        load_cluster_file("nodes: [{cards: 5}]", "cluster.yaml")
    assert [str(problem) for problem in caught.value.problems] == ["nodes[0].cards: 5 is not text"]


def test_folders_beside_each_other_are_taken() -> None:
    told = "software: ~/.longboat, data: ~/.longboat-data, run: ~/.longboat/run"
    file = load_hosts_file(f"hosts: [a]\nfolders: {{{told}}}\n{WHEEL}", "hosts.yaml")
    assert file.folders.run == "~/.longboat/run"


def test_added_host_stands_behind_the_last_one() -> None:
    changed = with_host(LIST, "four")
    assert "  - three\n  - four\ninstall" in changed and "# a comment" in changed
    assert [host.host for host in load_hosts_file(changed, "f").hosts] == ["one", "two", "three", "four"]


@pytest.mark.parametrize(("index", "left"), [(1, ["one", "three"]), (2, ["one", "two"])])
def test_removed_host_leaves_the_others_and_the_comments(index: int, left: list[str]) -> None:
    changed = without_host(LIST, index)
    assert [host.host for host in load_hosts_file(changed, "f").hosts] == left
    assert "# my hosts" in changed and "# a comment" in changed


def test_added_host_follows_a_last_host_of_several_lines() -> None:
    text = f"hosts:\n- one\n- host: two\n  port: 22\n\n# the rest\n{WHEEL}"
    changed = with_host(text, "three")
    assert "  port: 22\n- three\n\n# the rest\n" in changed


def test_hosts_in_one_line_are_not_edited() -> None:
    with pytest.raises(UserInputError, match="a list in one line"):
        with_host(f"hosts: [one]\n{WHEEL}", "two")
