"""Makes the pictures of the console for README and docs: ``python tools/console_pictures.py [FOLDER]``.

Needs Chromium, playwright (``make console-pictures`` installs it) and ``longboat engines install llama.cpp``.
Fake engines serve the models of the fleet; llama.cpp serves the built-in model, whose answers the playground shows.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longboat.builtin import ensure_as_gguf
from longboat.engines.environments.environment import find_environment
from longboat.folders import home_folder

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/gateway"), str(ROOT / "tests")]
KEPT = ("fleet-light.png", "plan-light.png", "playground-light.png", "request-light.png", "traffic-dark.png")
"""Those that docs show; the others are to be looked at."""
QUESTIONS = ("What is Longboat?", "What is a replica?", "What is a gang?")


async def main(folder: Path) -> None:
    """Write the pictures. folder: ``docs/pictures`` gets only those that docs show."""
    from browser_lab import browser
    from console_lab import fleet_view, opened_lab

    folder.mkdir(parents=True, exist_ok=True)
    only = KEPT if folder == ROOT / "docs/pictures" else ()
    with _built_in_model() as tiny:
        async with opened_lab(view=fleet_view(), traffic=True, real={"tiny": tiny}) as lab, browser() as chromium:
            await _take_all(lab, chromium, folder, only)


@contextmanager
def _built_in_model() -> Iterator[str]:
    """Serve builtin:tiny by llama.cpp, and give its address."""
    from engine_lab import free_port

    python = find_environment("llama.cpp", version=None, path=None, home=home_folder()).python
    model, port = ensure_as_gguf("builtin:tiny", home_folder()), free_port()
    words = ("--model", str(model), "--ctx-size", "512", "--threads", "1", "--host", "127.0.0.1", "--port", str(port))
    with subprocess.Popen(
        [Path(python).with_name("llama-server"), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


async def _take_all(lab: Any, chromium: Any, folder: Path, only: tuple[str, ...]) -> None:
    for theme, width, height in (("light", 1360, 860), ("dark", 1360, 860), ("phone", 390, 844)):
        context = await chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="light" if theme == "light" else "dark",
            reduced_motion="reduce",
        )
        page = await context.new_page()
        await _sign_in(page, lab)
        await page.wait_for_timeout(20_000 if theme != "phone" else 5_000)  # plots need some points
        await _take(page, lab, folder, theme, only)
        await context.close()


async def _sign_in(page: Any, lab: Any) -> None:
    await page.goto(lab.url)
    await page.fill("input[name=key]", lab.keys["operator"])
    await page.keyboard.press("Enter")
    await page.wait_for_selector("nav")


async def _take(page: Any, lab: Any, folder: Path, theme: str, only: tuple[str, ...]) -> None:
    import orjson
    from console_lab import fleet_view

    for name in ("fleet", "models", "requests", "traffic", "tenants", "usage", "plan", "playground"):
        if only and f"{name}-{theme}.png" not in only:
            continue
        await lab.gateway.offer_view(orjson.dumps(fleet_view()))  # as the controller does every second
        await page.click(f"nav a[href='/console/{name}']")
        await page.wait_for_timeout(2500)  # a page asks every two seconds
        await _prepare(page, name)
        await _write(page, folder / f"{name}-{theme}.png")
    if not only or f"catalog-{theme}.png" in only:
        await page.click("nav a[href='/console/models']")
        await page.click("text=What fits here")
        await page.fill("input[aria-label=Machines]", "4x(2xRTX4090), net=10GbE")
        await page.click("text=Look")
        await page.wait_for_selector("details[open] td", timeout=60_000)
        await page.click("text=Weights on the nodes")
        await page.wait_for_timeout(1500)
        await page.evaluate("document.querySelector('details[open]').scrollIntoView()")
        await page.evaluate("scrollBy(0, -60)")
        await _write(page, folder / f"catalog-{theme}.png")
    if not only:
        await page.goto(page.url.partition("/console")[0] + "/console/models/qwen3-32b")
        await page.click("summary:has-text('Log')")
        await page.wait_for_function("() => document.querySelector('.log').textContent.length > 100")
        await _write(page, folder / f"model-{theme}.png")
    if not only or f"request-{theme}.png" in only:
        await page.click("nav a[href='/console/requests']")
        await page.click("tr:has-text('qwen3-32b') td a.mono >> nth=0")
        await page.wait_for_selector(".way")
        await _write(page, folder / f"request-{theme}.png")


async def _prepare(page: Any, name: str) -> None:
    """Use the page, so that the picture shows something."""
    if name == "fleet":
        await page.click(".rank:has-text('1/2') >> nth=0")
        await page.evaluate("document.activeElement.blur()")
    elif name == "playground":
        await page.select_option(".settings select >> nth=0", "tiny")
        await page.select_option(".settings select >> nth=2", "support")
        await page.fill(".settings input[type=number] >> nth=0", "100")
        await page.fill(".settings input[type=number] >> nth=1", "0")
        for number, question in enumerate(QUESTIONS, 1):
            await page.fill("textarea[aria-label=Message]", question)
            await page.keyboard.press("Enter")
            await page.wait_for_function(f"() => document.querySelectorAll('.about a').length === {number}")
    elif name == "plan":
        await page.fill("input[name=model]", "Qwen3-32B")
        await page.fill("input[name=on]", "4x(2xRTX4090), net=10GbE")
        await page.fill("input[name=slo]", "ttft=1s,itl=50ms")
        await page.press("input[name=slo]", "Enter")
        await page.wait_for_selector(".reasons")
        await page.evaluate("scrollTo(0, 0)")
    elif name == "tenants":
        await page.select_option(".making select", "research")
        await page.fill(".making input[aria-label=Note]", "notebook")
        await page.click(".making button.main")
        await page.wait_for_selector(".secret")


async def _write(page: Any, path: Path) -> None:
    """Save the picture with few colours, which keeps it small."""
    from io import BytesIO

    from PIL import Image

    picture = Image.open(BytesIO(await page.screenshot()))
    picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else ROOT / "docs/pictures"))
