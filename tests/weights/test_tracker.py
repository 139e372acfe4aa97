"""The tracker, alone with a clock: each piece is read once, limits hold, and no node that fails stops the others."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longboat.weights.pieces.tracker import MAX_UPLOADS, StorageLimits, Tracker
from longboat.weights.pieces.turns import STORAGE, Answer, Done, Failed, Failure, Inventory, Order, Turn

KEY = "model"


class Node:
    """A node that takes turns."""

    def __init__(self, tracker: Tracker, name: str, num_pieces: int) -> None:
        self.tracker, self.name, self.num_pieces = tracker, name, num_pieces
        self.have: dict[int, str] = {}
        self.orders: dict[int, Order] = {}
        self.seen: Counter[str] = Counter()

    def turn(self, now_s: float, want: int = 0, **more: object) -> Answer:
        turn = Turn(member=self.name, num_pieces=self.num_pieces, piece_bytes=100, want=want, **more)  # type: ignore[arg-type]
        answer = self.tracker.turn(KEY, turn, now_s)
        if not answer.is_member:
            return self.turn(now_s, want, inventory=Inventory(hashes=self.have), **more)
        self.orders |= {order.piece: order for order in answer.orders}
        return answer

    def complete(self, now_s: float, piece: int) -> None:
        order = self.orders.pop(piece)
        self.have[piece] = f"hash {piece}"
        self.seen["storage" if order.source == STORAGE else "node"] += 1
        self.turn(now_s, done=(Done(piece=piece, source=order.source, sha256=self.have[piece]),))


@given(st.integers(1, 7), st.integers(1, 40), st.integers(1, 20), st.integers(0, 1000))
def test_every_node_gets_everything_and_the_storage_is_read_once(
    num_nodes: int, num_pieces: int, requests: int, seed: int
) -> None:
    tracker = Tracker(StorageLimits(requests=requests), seed)
    nodes = [Node(tracker, f"n{number}:1", num_pieces) for number in range(num_nodes)]
    chance = random.Random(seed)
    now_s = 0.0
    for _ in range(3000):
        now_s += 0.05
        node = chance.choice(nodes)
        node.turn(now_s, want=max(0, 4 - len(node.orders)))
        reading = sum(order.source == STORAGE for n in nodes for order in n.orders.values())
        assert reading <= requests
        if node.orders:
            node.complete(now_s, chance.choice(sorted(node.orders)))
        if all(len(n.have) == num_pieces for n in nodes):
            break
    assert all(len(n.have) == num_pieces for n in nodes)
    assert sum(n.seen["storage"] for n in nodes) == num_pieces


def test_uploads_of_one_node_are_bounded() -> None:
    tracker = Tracker(StorageLimits())
    seed = Node(tracker, "seed:1", 100)
    seed.have = {piece: f"hash {piece}" for piece in range(100)}
    seed.turn(0.0)
    others = [Node(tracker, f"n{number}:1", 100) for number in range(10)]
    for other in others:
        other.turn(0.0, want=8)
    assert sum(len(other.orders) for other in others) == MAX_UPLOADS


def test_what_a_silent_node_was_reading_is_given_to_another() -> None:
    tracker = Tracker(StorageLimits())
    a, b = Node(tracker, "a:1", 1), Node(tracker, "b:1", 1)
    a.turn(0.0, want=1)
    assert not b.turn(1.0, want=1).orders
    b.turn(8.0)
    assert b.turn(11.0, want=1).orders == (Order(piece=0, source=STORAGE),)


def test_a_failed_piece_comes_from_elsewhere() -> None:
    tracker = Tracker(StorageLimits())
    a, b = Node(tracker, "a:1", 1), Node(tracker, "b:1", 1)
    a.have = {0: "hash 0"}
    a.turn(0.0)
    (order,) = b.turn(0.0, want=1).orders
    assert order == Order(piece=0, source="a:1", sha256="hash 0")
    answer = b.turn(0.1, 1, failed=(Failed(piece=0, source="a:1", why=Failure.WRONG),))
    assert answer.orders == (Order(piece=0, source=STORAGE, sha256="hash 0"),)


def test_a_node_that_hangs_is_asked_ever_more_seldom_until_it_gives_a_piece() -> None:
    tracker = Tracker(StorageLimits(requests=1))
    slow, b = Node(tracker, "slow:1", 20), Node(tracker, "b:1", 20)
    slow.have = {piece: f"hash {piece}" for piece in range(20)}
    now_s, ordered_s = 0.0, list[float]()
    while now_s < 141.0:
        slow.turn(now_s)
        orders = [order for order in b.turn(now_s, want=3).orders if order.source != STORAGE]
        if orders:
            ordered_s.append(now_s)
            b.turn(now_s, failed=tuple(Failed(piece=o.piece, source=o.source, why=Failure.LOST) for o in orders))
        now_s += 1.0
    pauses = [later - earlier for earlier, later in pairwise(ordered_s)]
    assert pauses == [3.0, 6.0, 12.0, 24.0, 48.0]
    slow.turn(141.0)
    (order,) = b.turn(141.0, want=1).orders
    assert order.source == "slow:1"
    b.complete(141.0, order.piece)
    (order,) = b.turn(141.0, want=1).orders
    b.turn(141.0, failed=(Failed(piece=order.piece, source="slow:1", why=Failure.LOST),))
    slow.turn(144.0)
    assert [order.source for order in b.turn(144.0, want=1).orders] == ["slow:1"]


def test_a_node_that_gives_wrong_pieces_gives_no_more() -> None:
    tracker = Tracker(StorageLimits())
    bad, b = Node(tracker, "bad:1", 9), Node(tracker, "b:1", 9)
    bad.have = {piece: f"hash {piece}" for piece in range(9)}
    bad.turn(0.0)
    wrong = [order.piece for order in b.turn(0.0, want=3).orders]
    b.turn(0.0, failed=tuple(Failed(piece=piece, source="bad:1", why=Failure.WRONG) for piece in wrong))
    bad.turn(5.0)
    assert [order.source for order in b.turn(5.0, want=9).orders] == [STORAGE] * 9
    assert b.turn(5.0).num_hungry == 0


def test_the_bandwidth_of_the_storage_is_kept_over_time() -> None:
    tracker = Tracker(StorageLimits(requests=1000, bytes_per_s=500))
    nodes = [Node(tracker, f"n{number}:1", 400) for number in range(4)]
    for step in range(200):
        for node in nodes:
            node.turn(step * 0.05, want=4)
            for piece, order in list(node.orders.items()):
                if order.source == STORAGE:
                    node.complete(step * 0.05, piece)
    read = sum(node.seen["storage"] for node in nodes) * 100
    assert 500 * 9 <= read <= 500 * 11 + 100


def test_a_tracker_that_forgot_everything_learns_it_from_the_next_turns() -> None:
    a = Node(Tracker(StorageLimits()), "a:1", 2)
    a.turn(0.0, want=2)
    a.complete(0.0, next(iter(a.orders)))
    a.tracker = Tracker(StorageLimits())
    assert a.turn(1.0, want=2).orders
    assert a.tracker.holders(KEY) == {"a:1": 1}


def test_a_report_of_pieces_that_no_model_has_changes_nothing() -> None:
    a = Node(Tracker(StorageLimits()), "a:1", 2)
    a.turn(0.0)
    a.turn(0.0, done=(Done(piece=10**15, source="", sha256="x"), Done(piece=-1, source="", sha256="x")))
    a.turn(0.0, failed=(Failed(piece=10**15, source="a:1", why=Failure.WRONG),))
    assert a.tracker.holders(KEY) == {"a:1": 0}


def test_a_hash_that_the_storage_contradicts_is_forgotten() -> None:
    tracker = Tracker(StorageLimits())
    bad, b, c = (Node(tracker, f"{name}:1", 1) for name in ("bad", "b", "c"))
    bad.have = {0: "wrong hash"}
    bad.turn(0.0)
    b.turn(0.0, want=1)
    b.turn(0.0, failed=(Failed(piece=0, source="bad:1", why=Failure.WRONG),))
    assert b.turn(0.1, want=1).orders == (Order(piece=0, source=STORAGE, sha256="wrong hash"),)
    b.turn(0.2, failed=(Failed(piece=0, source=STORAGE, why=Failure.WRONG),))
    assert b.turn(4.0, want=1).orders == (Order(piece=0, source=STORAGE),)
    b.complete(4.0, 0)
    bad.turn(4.0)
    assert c.turn(4.0, want=1).orders == (Order(piece=0, source="b:1", sha256="hash 0"),)


def test_a_node_that_had_the_right_piece_gives_it_once_a_wrong_hash_is_forgotten() -> None:
    tracker = Tracker(StorageLimits())
    bad, good, b, c = (Node(tracker, f"{name}:1", 1) for name in ("bad", "good", "b", "c"))
    bad.have, good.have = {0: "wrong hash"}, {0: "hash 0"}
    for node in (bad, good, b):
        node.turn(0.0)
    b.turn(0.1, failed=(Failed(piece=0, source=STORAGE, why=Failure.WRONG),))
    assert tracker.holders(KEY)["good:1"] == 0
    b.turn(4.0, want=1)
    b.complete(4.0, 0)
    assert tracker.holders(KEY)["good:1"] == 1
    c.turn(4.1, want=1, failed=(Failed(piece=0, source="b:1", why=Failure.LOST),))
    assert c.orders[0].source == "good:1"


def test_a_node_whose_wrong_piece_is_doubted_already_keeps_others_from_no_right_one() -> None:
    tracker = Tracker(StorageLimits())
    a, b, c = (Node(tracker, f"{name}:1", 1) for name in "abc")
    a.have = b.have = {0: "wrong hash"}
    a.turn(0.0)
    b.turn(0.0)
    wrong = (Failed(piece=0, source=STORAGE, why=Failure.WRONG),)
    a.turn(0.1, failed=wrong)
    a.have = {}
    a.turn(0.2, want=1, inventory=Inventory(hashes={}))
    assert a.orders[0] == Order(piece=0, source=STORAGE)
    a.complete(0.3, 0)
    b.turn(0.4, failed=wrong)
    assert c.turn(0.5, want=1).orders == (Order(piece=0, source="a:1", sha256="hash 0"),)


def test_a_swarm_without_members_keeps_no_hashes() -> None:
    tracker = Tracker(StorageLimits())
    a, b = Node(tracker, "a:1", 1), Node(tracker, "b:1", 1)
    a.have = {0: "hash 0"}
    a.turn(0.0)
    assert b.turn(60.0, want=1).orders == (Order(piece=0, source=STORAGE),)


def test_a_piece_that_a_node_has_with_another_hash_is_not_ordered_again() -> None:
    tracker = Tracker(StorageLimits())
    first, other = (Node(tracker, f"{name}:1", 3) for name in "ab")
    first.have, other.have = {0: "right", 1: "right"}, {0: "other", 1: "other"}
    first.turn(0.0)
    assert [order.piece for order in other.turn(0.0, want=8).orders] == [2]
    other.complete(0.1, 2)
    assert other.turn(0.2, want=8).orders == ()
    assert first.turn(0.3).num_hungry == 0
    assert tracker.holders(KEY) == {"a:1": 2, "b:1": 1}
