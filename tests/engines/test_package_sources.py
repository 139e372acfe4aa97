"""Tests that pip's configuration becomes uv's arguments."""

from __future__ import annotations

import sys

from longboat.engines.environments.package_sources import PackageSources, package_sources, parse_pip_config
from longboat.hosts.bundle import _pip_indexes, _pip_words


def test_configuration_is_read_with_pips_precedence() -> None:
    text = """
:env:.find-links='/from/env'
global.extra-index-url='file:///one file:///two'
global.find-links='/from/global'
install.timeout='3'
"""
    assert parse_pip_config(text) == {
        "find-links": "/from/env",
        "extra-index-url": "file:///one file:///two",
        "timeout": "3",
    }


def test_environment_variables_count_even_without_pip() -> None:
    env = {"PIP_FIND_LINKS": "/a /b", "PIP_NO_INDEX": "1", "HOME": "/nowhere"}
    sources = package_sources(env, python="/no/such/python")
    assert sources == PackageSources(find_links=("/a", "/b"), no_index=True)


def test_an_empty_variable_overrides_a_file() -> None:
    env = {"PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    assert package_sources(env, python=sys.executable).find_links == ()


def test_nothing_configured_gives_uv_nothing() -> None:
    assert PackageSources().uv_arguments() == []


def test_every_source_reaches_uv() -> None:
    sources = PackageSources(
        index_url="file:///main", extra_index_urls=("file:///more",), find_links=("/wheels",), no_index=True
    )
    words = sources.uv_arguments()
    assert words[words.index("--find-links") + 1] == "/wheels" and "--no-index" in words
    assert words[words.index("--index-strategy") + 1] == "unsafe-best-match"
    variables = sources.uv_variables({})
    assert (variables["UV_DEFAULT_INDEX"], variables["UV_INDEX"]) == ("file:///main", "file:///more")


def test_password_of_an_index_is_in_no_argument() -> None:
    sources = PackageSources(
        index_url="https://a:secret@x/packages",
        extra_index_urls=("https://a:secret@y/packages",),
        find_links=("https://a:secret@z/page", "/wheels"),
    )
    assert "secret" not in " ".join(sources.uv_arguments())
    assert sources.uv_variables({"UV_FIND_LINKS": "/own"})["UV_FIND_LINKS"] == "/own,https://a:secret@z/page,/wheels"
    assert "secret" not in " ".join(_pip_words(sources))
    assert _pip_indexes(sources)["PIP_FIND_LINKS"] == "https://a:secret@z/page /wheels"


def test_certificate_of_pip_is_trusted_unless_the_environment_names_one() -> None:
    sources = PackageSources(certificate="/site/ca.pem")
    assert sources.uv_variables({}) == {"SSL_CERT_FILE": "/site/ca.pem"}
    assert sources.uv_variables({"SSL_CERT_FILE": "/mine.pem"}) == {}
