"""What the warm parent has loaded and forks share: found whole, and uncounted where Python can leave it so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from longboat.cluster.workers.lasting_objects import can_last, loaded_objects

UNCOUNTED = """
import gc, sys
from longboat.cluster.workers.lasting_objects import share_what_is_loaded
def function():
    return "a constant of some code", unknown_name
share_what_is_loaded()
code = function.__code__
for each in (function, code, code.co_consts, code.co_consts[1], code.co_names[0], function.__globals__, gc):
    assert sys.getrefcount(each) == sys.getrefcount(None), each
fresh = ["made afterwards"]
assert sys.getrefcount(fresh) < 10
"""


def test_what_code_refers_to_is_found() -> None:
    code = test_what_code_refers_to_is_found.__code__
    found = {id(each) for each in loaded_objects()}
    assert {id(code), id(code.co_consts), id(code.co_names), *map(id, code.co_consts), *map(id, code.co_names)} <= found


@pytest.mark.skipif(not can_last(), reason="this Python counts the references to every object")
def test_what_is_loaded_is_not_counted_and_what_follows_is() -> None:
    subprocess.run([sys.executable, "-c", UNCOUNTED], check=True)
