"""Turns of the engines that start on one card."""

from __future__ import annotations

import asyncio
from pathlib import Path

from longboat.cluster.gang.gang_start import card_turn


async def test_starts_on_one_card_come_one_after_the_other(tmp_path: Path) -> None:
    order: list[str] = []

    async def start(name: str, *cards: str) -> None:
        async with card_turn(tmp_path, cards):
            order.append(f"{name} begins")
            await asyncio.sleep(0.3)
            order.append(f"{name} ends")

    await asyncio.gather(start("a", "0"), start("b", "0"))
    assert order[1].split()[0] == order[0].split()[0]
    assert len(order) == 4


async def test_starts_on_different_cards_do_not_wait(tmp_path: Path) -> None:
    async with card_turn(tmp_path, ("0",)), asyncio.timeout(20), card_turn(tmp_path, ("1", "GPU-a/b")):
        assert {path.name for path in tmp_path.iterdir()} == {"card-0.lock", "card-1.lock", "card-GPU-a_b.lock"}


async def test_a_start_that_is_given_up_leaves_its_turn(tmp_path: Path) -> None:
    waiting = asyncio.create_task(_hold(tmp_path))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(20), card_turn(tmp_path, ("0",)):
        pass


async def _hold(run: Path) -> None:
    async with card_turn(run, ("0",)):
        await asyncio.sleep(60)
