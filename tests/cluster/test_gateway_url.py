"""The address that a node's gateway is known by."""

from __future__ import annotations

import pytest

from longboat.cluster.node.gateway_process import _url
from longboat.cluster.protocol.messages import GatewaySettings


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
        ("0.0.0.0", "http://10.0.0.1:8000"),
        ("::", "http://10.0.0.1:8000"),
    ],
)
def test_the_url_leads_to_the_host_or_the_node(host: str, url: str) -> None:
    assert _url(GatewaySettings(host=host, port=8000, processes=1), "10.0.0.1") == url


def test_the_url_says_whether_it_is_https() -> None:
    settings = GatewaySettings(host="0.0.0.0", port=8443, processes=1, tls_certificate="/c", tls_key="/k")
    assert _url(settings, "10.0.0.1") == "https://10.0.0.1:8443"
