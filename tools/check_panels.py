"""List panels of our dashboards that have no data: ``tools/check_panels.py http://PROMETHEUS:9090``.

Prometheus must scrape a fleet for some minutes before. What has not happened has no data: a stream that was never
continued, an external model that the fleet does not have.
"""

from __future__ import annotations

import json
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator

from longboat.dashboards.boards import BOARDS

__all__ = ("empty_panels", "main")

_VARIABLES = {"$__rate_interval": "2m", "$model": ".*", "$tenant": ".*"}


def main(words: list[str]) -> int:
    """Print every query without a sample; return the exit status."""
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    empty = list(empty_panels(words[0]))
    for line in empty:
        print(line)
    number = sum(len(panel.queries) for board in BOARDS for panel in board.panels)
    print(f"{number - len(empty)} of {number} queries have data")
    return int(bool(empty))


def empty_panels(url: str) -> Iterator[str]:
    """Yield board, panel and query of what has no sample now. Raises OSError where Prometheus does not answer."""
    for board in BOARDS:
        for panel in board.panels:
            for expr, _ in panel.queries:
                if not _samples(url, expr):
                    yield f"{board.name}: {panel.title}: {expr}"


def _samples(url: str, expr: str) -> list[object]:
    for name, value in _VARIABLES.items():
        expr = expr.replace(name, value)
    asked = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
    with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310 - the operator's own address
        samples: list[object] = json.load(answer)["data"]["result"]
        return samples


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
