"""Signing in through a provider in a real browser: cookies between the sites, the page's link, what went wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from browser_lab import browser, why_no_browser
from gateway_lab import push_policy
from provider_lab import Provider, ShiftedClock, opened_gateway, opened_provider, sign_in_policy

from longboat.core.policy import Policy
from longboat.gateway.process.server import Gateway

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser()),
    pytest.mark.timeout(240),
]


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with opened_provider() as made:
        yield made


@pytest.fixture
async def gateway(provider: Provider) -> AsyncIterator[Gateway]:
    async with opened_gateway(Policy(), ShiftedClock()) as made:
        url = f"http://127.0.0.1:{made.port}"
        push_policy(made, sign_in_policy(provider.issuer, console_urls=(url,))[0])
        yield made


@pytest.fixture
async def page() -> AsyncIterator[Any]:
    async with browser() as chromium:
        made = await (await chromium.new_context(viewport={"width": 375, "height": 700})).new_page()
        made.complaints = []
        made.on("pageerror", lambda error: made.complaints.append(str(error)))
        yield made
        assert made.complaints == []


async def test_person_signs_in_by_the_link_and_out_again(gateway: Gateway, page: Any) -> None:
    await page.goto(f"http://127.0.0.1:{gateway.port}/console")
    await page.click("text=Sign in with 127.0.0.1")
    await page.wait_for_selector("nav")
    assert "ada · operator" in await page.inner_text("header")
    assert "code=" not in page.url and "state=" not in page.url
    await page.click("text=Sign out")
    await page.wait_for_selector("text=Sign in with 127.0.0.1")


async def test_page_says_why_a_person_does_not_get_in(gateway: Gateway, provider: Provider, page: Any) -> None:
    provider.groups = ["staff"]
    await page.goto(f"http://localhost:{gateway.port}/console")
    await page.click(f"text=Open http://127.0.0.1:{gateway.port}/console")  # this address is not among console_urls
    await page.click("text=Sign in with 127.0.0.1")
    await page.wait_for_selector("text=Your account is in no group that this fleet knows")
    assert "sign_in" not in page.url
