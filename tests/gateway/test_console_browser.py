"""The console in a real browser: every page, by keyboard alone, with hostile names, and in a fleet of 200 replicas."""

from __future__ import annotations

import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from browser_lab import browser, why_no_browser
from console_lab import HOSTILE, MODELS, Lab, fleet_view, opened_lab, with_hostile_names

from longboat.gateway.orders.model_orders import ModelOrders

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser()),
    pytest.mark.timeout(240),
]

BUSY = pytest.mark.parametrize("lab", ["busy"], indirect=True)
PAGES = ("fleet", "models", "requests", "traffic", "tenants", "usage", "plan", "playground")


class Visit:
    """A page with all that it complained of, and all that it asked for."""

    def __init__(self, page: Any, lab: Lab) -> None:
        self.page = page
        self.lab = lab
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda message: self._note(message))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    async def sign_in(self, who: str) -> None:
        """Sign in with the keyboard alone: the field has the focus."""
        await self.page.goto(self.lab.url)
        await self.page.wait_for_selector("input[name=key]")
        await self.page.keyboard.type(self.lab.keys[who])
        await self.page.keyboard.press("Enter")
        await self.page.wait_for_selector("nav")

    async def title(self) -> str:
        return str(await self.page.inner_text("h1"))

    def assert_clean(self) -> None:
        assert self.complaints == []
        assert self.hosts == {f"127.0.0.1:{self.lab.gateway.port}"}


@pytest.fixture
async def lab(request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    """A gateway whose tenants send requests; engines run only for the tests that need them."""
    busy = getattr(request, "param", "") == "busy"
    async with opened_lab(view=fleet_view(), traffic=busy, with_engines=busy) as made:
        yield made


@pytest.fixture
async def visit(lab: Lab) -> AsyncIterator[Visit]:
    async with browser() as chromium:
        page = await (await chromium.new_context(viewport={"width": 1200, "height": 800})).new_page()
        yield Visit(page, lab)


@BUSY
async def test_every_page_opens_without_an_error(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("operator")
    for name in PAGES:
        await page.goto(f"{visit.lab.url}/{name}")  # each has an address of its own
        await page.wait_for_selector(f"nav a[href='/console/{name}'][aria-current=page]")
        await page.wait_for_timeout(700)
        wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is wider than the window"
    await page.goto(f"{visit.lab.url}/requests")
    await page.click("td a.mono >> nth=0")
    await page.wait_for_selector(".way .step")
    assert await page.locator(".facts .tag").inner_text() != ""
    await page.set_viewport_size({"width": 320, "height": 700})
    for name in PAGES:
        await page.goto(f"{visit.lab.url}/{name}")
        await page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
        await page.wait_for_timeout(500)
        wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is wider than a small phone"
    stored = await page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert visit.lab.keys["operator"] not in stored and "longboat_console" not in stored
    visit.assert_clean()


@BUSY
async def test_keyboard_alone_moves_through_the_console(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("operator")
    for letter, title in (
        ("m", "Models"),
        ("r", "Requests"),
        ("t", "Traffic"),
        ("n", "Tenants"),
        ("u", "Usage"),
        ("w", "Plan"),
    ):
        await page.keyboard.press("g")
        await page.keyboard.press(letter)
        assert await visit.title() == title
        assert await page.evaluate("document.activeElement.localName") == "h1"
    await page.keyboard.press("g")
    await page.keyboard.press("r")
    await page.keyboard.press("/")
    await page.keyboard.type("no such request")
    await page.wait_for_selector(".empty:not(.hidden)")
    assert "find=no+such" in page.url
    for _ in range(30):  # the links of the bar are reached by Tab
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.getAttribute('href')") == "/console/usage":
            break
    await page.keyboard.press("Enter")
    assert await visit.title() == "Usage"
    await page.go_back()
    assert await visit.title() == "Requests"
    visit.assert_clean()


@BUSY
async def test_cleared_chat_leaves_nothing_behind(visit: Visit) -> None:
    page, sent = visit.page, []
    page.on("request", lambda request: sent.append(request.post_data) if "/api/chat" in request.url else None)
    await visit.sign_in("research")
    await page.goto(f"{visit.lab.url}/playground?model=llama-3.1-8b")
    await page.wait_for_selector("select option[value='llama-3.1-8b']", state="attached")
    for words, button in (("Who rows?", "Clear"), ("Who steers?", "Stop")):
        await page.fill("textarea[aria-label=Message]", words)
        await page.wait_for_selector("button.main:enabled")
        await page.keyboard.press("Enter")
        await page.wait_for_function(
            "() => document.querySelector('article.assistant span:nth-child(2)')?.textContent.length > 10"
        )
        await page.click(f"text={button}")
    assert [[row["content"] for row in orjson.loads(body)["messages"]] for body in sent] == [
        ["Who rows?"],
        ["Who steers?"],
    ]


async def test_sign_out_that_failed_says_so(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("operator")
    await page.route("**/sign-out", lambda route: route.fulfill(status=503, json={"error": {"message": "Not now."}}))
    await page.click("text=Sign out")
    await page.wait_for_selector(".error.out")
    assert await page.inner_text(".error.out") == "You are still signed in: Not now."
    await page.unroute("**/sign-out")
    await page.click("text=Sign out")
    await page.wait_for_selector("input[name=key]")


@BUSY
async def test_chat_streams_and_stops(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("research")
    await page.goto(f"{visit.lab.url}/playground?model=llama-3.1-8b")
    await page.wait_for_selector("select option[value='llama-3.1-8b']", state="attached")
    await page.fill("textarea[aria-label=Message]", "Who rows?")
    await page.keyboard.press("Enter")
    await page.wait_for_function(
        "() => document.querySelector('article.assistant span:nth-child(2)')?.textContent.length > 40"
    )
    await page.click("text=Stop")
    await page.wait_for_selector("article.assistant .about a")
    assert "stopped" in await page.inner_text("article.assistant .about")
    assert await page.locator("nav a[href='/console/fleet']").count() == 0  # a tenant's console has no fleet
    await page.click("article.assistant .about a")
    await page.wait_for_selector(".facts, .error")
    assert [entry for entry in visit.complaints if "404" not in entry] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@BUSY
async def test_axe_finds_nothing_serious(lab: Lab, scheme: str) -> None:
    rules = axe_rules()
    async with browser() as chromium:
        context = await chromium.new_context(color_scheme=scheme, bypass_csp=True)  # axe is not a file of the gateway
        visit = Visit(await context.new_page(), lab)
        await visit.page.goto(lab.url)
        await visit.page.wait_for_selector("input[name=key]")
        found = await serious(visit, rules)
        await visit.sign_in("operator")
        for name in (*PAGES, "models/qwen3-32b"):
            await visit.page.goto(f"{lab.url}/{name}")
            await visit.page.wait_for_selector(f"nav a[href='/console/{name.partition('/')[0]}'][aria-current=page]")
            await visit.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
            await visit.page.wait_for_timeout(1000)
            found += await serious(visit, rules)
        assert found == []


def axe_rules() -> str:
    """Return the script of axe-core as its package ships it."""
    package = pytest.importorskip("axe_playwright_python", reason="axe is not installed (make test-console)")
    return (Path(package.__path__[0]) / "axe.min.js").read_text()


async def serious(visit: Visit, rules: str) -> list[str]:
    await visit.page.evaluate(rules)
    report = await visit.page.evaluate("() => axe.run()")
    grave = [found for found in report["violations"] if found["impact"] in ("serious", "critical")]
    return [f"{visit.page.url}: {found['id']}: {found['nodes'][0]['html'][:200]}" for found in grave]


async def test_hostile_text_stays_text(visit: Visit) -> None:
    page = visit.page
    lab = visit.lab
    await lab.gateway.steering.offer_view(orjson.dumps(with_hostile_names(fleet_view(models=(HOSTILE, "b", "c")))))
    await visit.sign_in("operator")
    await page.wait_for_selector(".problems li.bad")
    for name in PAGES:
        await page.goto(f"{lab.url}/{name}")
        await page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
        await page.wait_for_timeout(600)
        assert await page.title() != "owned"
        assert await page.locator("main img").count() == 0
    await page.goto(f"{lab.url}/fleet")
    await page.wait_for_selector(".node")
    assert HOSTILE in await page.inner_text(".node header b >> nth=0")
    await page.goto(f"{lab.url}/models/{'%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E'}")
    assert await visit.title() == "<img src=x onerror=alert(1)>"
    visit.assert_clean()


async def test_page_lives_with_the_fleet_and_says_when_nothing_answers(visit: Visit) -> None:
    page, lab = visit.page, visit.lab
    view = fleet_view(num_replicas=3)
    await lab.gateway.steering.offer_view(orjson.dumps(view))
    await visit.sign_in("viewer")
    await page.wait_for_selector(".problems li.calm")
    row = page.locator("tr", has_text=view["replicas"][1]["replica"])
    await row.evaluate("node => { node.seen = true }")
    view["replicas"][1] |= {"phase": "failed", "detail": "rank 0 ended with signal 9"}
    await lab.gateway.steering.offer_view(orjson.dumps(view))
    await page.wait_for_selector(".problems li.bad")
    assert "signal 9" in await page.inner_text(".problems")
    assert await row.evaluate("node => node.seen")  # the row itself stayed
    await page.context.set_offline(True)
    await page.wait_for_selector(".pulse.stale")
    await page.context.set_offline(False)
    await page.wait_for_selector(".pulse:not(.stale)")
    await page.context.clear_cookies()
    await page.wait_for_selector("input[name=key]")
    assert "session has ended" in await page.inner_text(".error")


async def test_large_fleet_is_drawn_quickly_and_in_place(visit: Visit) -> None:
    page, lab = visit.page, visit.lab
    view = fleet_view(64, 200)
    await lab.gateway.steering.offer_view(orjson.dumps(view))
    await visit.sign_in("viewer")
    await page.wait_for_function("() => document.querySelectorAll('tbody tr').length >= 200")
    assert await page.locator(".node").count() == 64
    count = """() => { window.changes = 0;
        new MutationObserver((list) => { window.changes += list.length }).observe(document.querySelector("main"),
        { subtree: true, childList: true, characterData: true, attributes: true }) }"""
    await page.evaluate(count)
    began_s = time.monotonic()
    view["replicas"][7] |= {"phase": "failed", "detail": "gone at night"}
    await lab.gateway.steering.offer_view(orjson.dumps(view))
    await page.wait_for_selector("text=gone at night")
    print(f"a change was shown after {time.monotonic() - began_s:.1f} s")
    assert await page.evaluate("window.changes") < 200  # and not a table of 200 rows
    visit.assert_clean()


async def test_a_thousand_tenants_are_found_and_few_rows_drawn() -> None:
    names = [f"team-{number:04}" for number in range(1000)]
    async with opened_lab(view=fleet_view(), tenants=names, with_engines=False) as lab, browser() as chromium:
        visit = Visit(await chromium.new_page(), lab)
        page = visit.page
        await visit.sign_in("operator")
        await page.click("nav a[href='/console/tenants']")
        await page.wait_for_selector("text=1000 of 1000 tenants")
        assert await page.locator("tbody tr").count() <= 3 * 400
        await page.keyboard.press("/")
        await page.keyboard.type("team-0997")
        await page.wait_for_selector("text=1 of 1000 tenants")
        assert await page.inner_text("tbody tr >> nth=0") != ""
        for name in ("usage", "traffic", "fleet"):
            await page.click(f"nav a[href='/console/{name}']")
            await page.wait_for_selector(f"nav a[href='/console/{name}'][aria-current=page]")
        visit.assert_clean()


async def test_cards_show_the_gang_that_is_chosen(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("viewer")
    await page.wait_for_selector(".cards li")
    assert await page.locator(".cards li").count() == 4 * 8
    assert await page.locator(".cards li.chosen").count() == 0
    await page.click(".rank:has-text('qwen3-32b · 1/2') >> nth=0")
    chosen = page.locator(".node:has(.cards li.chosen)")
    assert await chosen.count() == 2  # one rank on each of two hosts
    title = await page.locator(".cards li.chosen >> nth=0").get_attribute("title")
    assert "Accelerator" in title and "qwen3-32b" in title and "rank" in title
    visit.assert_clean()


@BUSY
async def test_usage_shows_money_and_what_is_left_today(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("operator")
    await page.goto(f"{visit.lab.url}/usage")
    await page.wait_for_selector("td:has-text('money per day')")
    await page.wait_for_selector("td:has-text('EUR')")
    await page.wait_for_selector(".plot:has-text('Cost by day (UTC)'):not(.hidden)")
    visit.assert_clean()


async def test_plan_page_answers_and_its_address_can_be_shared(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("operator")
    await page.goto(f"{visit.lab.url}/plan")
    await page.fill("input[name=model]", "Llama-3.1-8B")
    await page.fill("input[name=on]", "2x(2xRTX4090), net=10GbE")
    await page.fill("input[name=slo]", "ttft=2s")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".reasons li")
    assert "2 replicas of 2 x RTX 4090" in await page.inner_text("tr.chosen")
    address = page.url
    assert "model=Llama-3.1-8B" in address
    await page.goto(address)
    await page.wait_for_selector(".reasons li")
    await page.fill("input[name=on]", "1x(1xNoSuchCard)")
    await page.press("input[name=on]", "Enter")
    await page.wait_for_selector(".problems li.bad")
    assert "NoSuchCard" in await page.inner_text(".problems")
    complaints = [entry for entry in visit.complaints if "400" not in entry]
    assert complaints == []


@pytest.mark.parametrize("who", ["viewer", "research"])
async def test_pages_of_operators_are_closed_to_others(visit: Visit, who: str) -> None:
    page = visit.page
    await visit.sign_in(who)
    await page.goto(f"{visit.lab.url}/plan")
    await page.wait_for_selector("nav a[aria-current=page]")
    assert await visit.title() != "Plan" and await page.locator("nav a[href='/console/plan']").count() == 0
    await page.goto(f"{visit.lab.url}/tenants")
    await page.wait_for_selector("tbody tr")
    assert await page.locator(".making, button:has-text('Revoke')").count() == 0
    await page.goto(f"{visit.lab.url}/models")
    await page.wait_for_timeout(500)
    assert await page.locator("text=What fits here").count() == 0
    visit.assert_clean()


async def test_catalog_and_weights_are_shown(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("operator")
    await page.goto(f"{visit.lab.url}/models")
    await page.click("text=What fits here")
    await page.fill("input[aria-label=Machines]", "4x(2xRTX4090), net=10GbE")
    await page.press("input[aria-label=Machines]", "Enter")
    await page.wait_for_selector("details[open] td a.name", timeout=60_000)
    said = await page.inner_text("details[open] [role=status]")
    assert "fit on 4 x (2 x RTX 4090)" in said and "To start one, look at “live”." in said
    assert await page.locator("details[open] th:has-text('Start')").count() == 0
    await page.click("text=Weights on the nodes")
    await page.wait_for_selector("text=hf:Qwen/Qwen3-32B >> nth=0")
    assert await page.locator("text=60% here").count() == 4
    visit.assert_clean()


async def test_model_of_the_catalog_is_started_and_ended(visit: Visit, tmp_path: Path) -> None:
    page, state = visit.page, visit.lab.gateway.state
    row = {"model": "Qwen3-0.6B", "params": 6e8, "fits": True, "quantization": "bfloat16", "plan": "TP1", "missed": ""}
    row |= {"source": "hf:Qwen/Qwen3-0.6B", "tokens_per_s": 900, "ttft_s": 0.1, "itl_s": 0.01, "usd_per_million": 0.2}
    row |= {"max_context_tokens": 32768, "max_sequences": 9}
    other = row | {"model": "Qwen3-32B", "quantization": "awq", "source": ""}
    found = {"cluster": "1 x H100", "models": [row, other]}
    await page.route("**/console/api/plan", lambda route: route.fulfill(json=found))
    said = {"started": "Qwen3-0.6B", "shape": "TP1 PP1", "why": "one rank", "notes": [], "entry": "{name: Qwen3-0.6B}"}
    said["price"] = "Qwen3-0.6B: {input_per_million: 0}"
    state.model_orders = answering(tmp_path, {"value": said})
    await visit.sign_in("operator")
    await page.goto(f"{visit.lab.url}/models")
    await page.click("text=What fits here")
    await page.press("input[aria-label=Machines]", "Enter")
    assert "needs weights in this format" in await page.inner_text("tr:has-text('Qwen3-32B')")
    await page.click("button[aria-label='Start Qwen3-0.6B']")
    assert await page.evaluate("document.activeElement.name") == "source"
    assert await page.input_value("input[name=source]") == "hf:Qwen/Qwen3-0.6B"
    await page.fill("input[name=input_per_million]", "0")
    await page.fill("input[name=output_per_million]", "1.25")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("text=Qwen3-0.6B is being started (TP1 PP1): one rank.")
    kept = await page.inner_text("code:has-text('- {name: Qwen3-0.6B}')")
    assert kept.endswith("below gateway.prices Qwen3-0.6B: {input_per_million: 0}")
    order = orjson.loads((tmp_path / "order").read_bytes())
    assert order.pop("price") == {"input_per_million": 0, "output_per_million": 1.25}
    assert order == {"order": "start", "by": "operator, console", "source": "hf:Qwen/Qwen3-0.6B", "replicas": 1}
    view = fleet_view() | {"started": {"mistral-small": {"by": "ops, console", "since_s": time.time()}}}
    await visit.lab.gateway.steering.offer_view(orjson.dumps(view))
    state.model_orders = answering(tmp_path, {"value": {"ended": "mistral-small"}})
    page.on("dialog", lambda dialog: dialog.accept())
    await page.click("button[aria-label='End mistral-small']")
    await page.wait_for_selector("text=mistral-small leaves the fleet.")
    visit.assert_clean()
    state.model_orders = answering(tmp_path, {"status": 400, "error": "m: no node has room", "hint": "add one"})
    await page.goto(f"{visit.lab.url}/models?start=builtin:tiny")
    await page.press("input[name=source]", "Enter")
    await page.wait_for_selector("text=m: no node has room. Hint: add one.")
    assert orjson.loads((tmp_path / "order").read_bytes())["source"] == "builtin:tiny"


def answering(tmp_path: Path, said: dict[str, Any]) -> ModelOrders:
    """Return orders whose process writes down what it reads, and answers ``said``."""
    answer = orjson.dumps(said).decode()
    text = f"import sys; open({str(tmp_path / 'order')!r}, 'w').write(sys.stdin.read()); print({answer!r})"
    return ModelOrders(tmp_path, command=[sys.executable, "-c", text])


async def test_log_is_live_bounded_and_stays_text(visit: Visit) -> None:
    page, daemon = visit.page, visit.lab.daemon
    daemon.log = f"{HOSTILE}\n<script>document.title='owned'</script>\n" + "x" * 300_000 + "\nthe first end\n"
    await visit.lab.gateway.steering.offer_view(orjson.dumps(fleet_view()))
    await visit.sign_in("operator")
    await page.goto(f"{visit.lab.url}/models/llama-3.1-8b")
    await page.click("summary:has-text('Log')")
    await page.wait_for_function("() => document.querySelector('.log').textContent.includes('the first end')")
    daemon.log += f"{HOSTILE} a later line\n"
    await page.wait_for_function("() => document.querySelector('.log').textContent.includes('a later line')")
    assert await page.evaluate("document.querySelector('.log').textContent.length") <= 200_000
    assert await page.locator(".log *").count() == 0 and await page.title() != "owned"
    visit.assert_clean()


async def test_key_is_made_shown_once_and_revoked(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("operator")
    await page.goto(f"{visit.lab.url}/tenants")
    await page.wait_for_selector(".making option[value=support]", state="attached")
    await page.select_option(".making select", "support")
    await page.fill(".making input[aria-label=Note]", HOSTILE)
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".secret")
    secret = await page.inner_text(".secret")
    key_id = secret.split("-")[1]
    assert secret.startswith("lb-") and visit.lab.gateway.state.live.keys.tenant_of(secret.encode(), time.time())
    assert secret not in page.url
    row = page.locator("tr", has_text=key_id)
    await row.wait_for()
    stored = await page.evaluate("JSON.stringify([localStorage, sessionStorage])")
    assert secret not in stored
    page.on("dialog", lambda dialog: dialog.accept())
    await row.locator("button").click()
    await row.wait_for(state="detached")
    tenant = visit.lab.gateway.state.live.keys.tenant_of(secret.encode(), time.time())
    assert tenant is None
    await page.click("text=Hide it for good")
    assert secret not in await page.content()
    await page.reload()
    await page.wait_for_selector("tbody tr")
    assert secret not in await page.content()
    visit.assert_clean()


@BUSY
async def test_two_models_answer_side_by_side(visit: Visit) -> None:
    page = visit.page
    await visit.sign_in("research")
    await page.goto(f"{visit.lab.url}/playground?model=llama-3.1-8b&with=qwen3-32b")
    await page.wait_for_selector(".lanes.two")
    await page.fill("input[type=number] >> nth=0", "12")
    await page.fill("textarea[aria-label=Message]", "Who rows?")
    await page.press("textarea[aria-label=Message]", "Enter")
    await page.wait_for_function("() => document.querySelectorAll('.said .about a').length === 2")
    notes = await page.locator(".said .about").all_inner_texts()
    assert [note for note in notes if note.startswith("llama-3.1-8b")] and [n for n in notes if n.startswith("qwen3")]
    visit.assert_clean()


@BUSY
async def test_plot_of_usage_is_saved_as_a_file(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    await visit.sign_in("viewer")
    await page.goto(f"{visit.lab.url}/usage")
    await page.wait_for_selector("tbody tr td.num")
    async with page.expect_download() as saved:
        await page.click("text=Save as SVG")
    await (await saved.value).save_as(tmp_path / "usage.svg")
    root = ElementTree.parse(tmp_path / "usage.svg").getroot()  # noqa: S314 - the page made it
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall("{*}rect")) == 31 and "Output tokens by day (UTC)" in (tmp_path / "usage.svg").read_text()
    visit.assert_clean()


async def test_killed_engine_is_seen_and_the_answer_goes_on(lab: Lab) -> None:
    async with opened_lab(demo=True) as shown, browser() as chromium:
        visit = Visit(await (await chromium.new_context()).new_page(), shown)
        page = visit.page
        await visit.sign_in("operator")
        await page.goto(f"{shown.url}/playground?model={MODELS[0]}")
        await page.wait_for_selector(f"select option[value='{MODELS[0]}']", state="attached")
        await page.fill("input[type=number] >> nth=0", "400")
        await page.fill("textarea[aria-label=Message]", "Who rows?")
        await page.press("textarea[aria-label=Message]", "Enter")
        await page.click("text=Kill the engine now")
        await page.wait_for_selector("text=continued the answer after")
        text = await page.inner_text("article.assistant")
        assert "was killed" in text and "400 tokens" in text
        assert await page.locator("text=Kill the engine now").count() == 0
        visit.assert_clean()


def tool_call(index: int, name: str, arguments: str) -> str:
    call = {"index": 0, "id": "call-7", "function": {"name": name, "arguments": arguments}}
    event = {"choices": [{"delta": {"tool_calls": [call]}}]} if index < 2 else {"choices": [{"delta": {}}]}
    return f"data: {orjson.dumps(event).decode()}\n\n"


async def test_images_tools_and_schema_go_with_the_request(visit: Visit, tmp_path: Path) -> None:
    from PIL import Image

    page, sent = visit.page, []
    answers = [
        tool_call(0, "weather", '{"city": ') + tool_call(1, "", f'"{HOSTILE}"}}') + "data: [DONE]\n\n",
        'data: {"choices": [{"delta": {"content": "{\\"name\\": 1}"}}]}\n\ndata: [DONE]\n\n',
    ]

    async def answer(route: Any) -> None:
        sent.append(orjson.loads(route.request.post_data))
        await route.fulfill(status=200, content_type="text/event-stream", body=answers[min(len(sent), 2) - 1])

    Image.new("RGB", (40, 20), "navy").save(tmp_path / "boat.png")
    (tmp_path / "large.png").write_bytes(b"x" * (5 << 20))
    (tmp_path / "page.svg").write_text("<svg/>")
    await page.route("**/api/chat*", answer)
    await visit.sign_in("research")
    await page.goto(f"{visit.lab.url}/playground?model=x")
    for name, words in (("large.png", "is the most"), ("page.svg", "is not a PNG")):
        await page.set_input_files("input[type=file]", tmp_path / name)
        await page.wait_for_function(f"() => document.querySelector('.talk > .error').textContent.includes('{words}')")
    await page.set_input_files("input[type=file]", tmp_path / "boat.png")
    await page.wait_for_selector(".chip canvas")
    await page.click("summary:has-text('Tools')")
    await page.fill("textarea.mono >> nth=0", "{}")
    await page.fill("textarea[aria-label=Message]", "Where is it?")
    await page.press("textarea[aria-label=Message]", "Enter")
    await page.wait_for_function("() => document.querySelector('.talk > .error').textContent.includes('JSON array')")
    assert sent == []
    await page.fill("textarea.mono >> nth=0", '[{"type": "function", "function": {"name": "weather"}}]')
    await page.click("summary:has-text('JSON schema')")
    await page.fill("textarea.mono >> nth=1", '{"type": "object"}')
    await page.press("textarea[aria-label=Message]", "Enter")
    await page.wait_for_selector("form.results")
    (content,) = [row["content"] for row in sent[0]["messages"]]
    assert content[0] == {"type": "text", "text": "Where is it?"}
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert sent[0]["tools"][0]["function"]["name"] == "weather"
    assert sent[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert f'weather({{"city": "{HOSTILE}"}})' in await page.inner_text("article.assistant")
    await page.fill("form.results input", "rain")
    await page.click("form.results button")
    await page.wait_for_function("() => document.querySelectorAll('.said .about').length === 3")
    await page.wait_for_selector("text=the answer is JSON")
    called, result = sent[1]["messages"][1:]
    assert called["tool_calls"][0]["function"]["arguments"] == f'{{"city": "{HOSTILE}"}}'
    assert result == {"role": "tool", "tool_call_id": "call-7", "content": "rain"}
    visit.assert_clean()
