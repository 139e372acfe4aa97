"""Checks the dashboards by the types of Grafana's own schema: ``python tools/check_boards.py``.

npm installs ``@grafana/schema`` and TypeScript into ``build/grafana``. The compiler then reads every dashboard as a
value of Grafana's types, so that an unknown, a missing or a wrong field is an error. Exits with the compiler's status.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from longboat.dashboards.files import all_files

FOLDER = Path(__file__).resolve().parent.parent / "build/grafana"
PACKAGES = ("@grafana/schema@12.1.1", "typescript@5.9.3")
"""Of the version of Grafana that the compose file starts."""
TYPES = "./node_modules/@grafana/schema/dist/types/raw"
HEAD = f"""
import type {{ Dashboard }} from "{TYPES}/dashboard/x/dashboard_types.gen";
import type * as Plot from "{TYPES}/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
// JSON has strings where the types have enums of strings
type Read<T> = T extends string ? `${{T}}` : T extends readonly (infer U)[] ? readonly Read<U>[]
  : T extends object ? {{ [K in keyof T]: Read<T[K]> }} : T;
"""
COMPILER = ("tsc", "--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler", "--module", "esnext")


def main() -> int:
    """Check every dashboard; return the exit status."""
    boards = [json.loads(text) for name, text in all_files(()).items() if name.endswith(".json")]
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true}')
    (FOLDER / "boards.ts").write_text(HEAD + "\n".join(line for board in boards for line in values_of(board)))
    install = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", *PACKAGES)
    subprocess.run(install, cwd=FOLDER, check=True, timeout=300)
    words = ("npx", "--no-install", *COMPILER, "--target", "es2022", "boards.ts")
    status = subprocess.run(words, cwd=FOLDER, check=False, timeout=300).returncode
    print(f"{len(boards)} dashboards, {sum(len(board['panels']) for board in boards)} panels: {PACKAGES[0]}")
    return status


def values_of(board: dict[str, Any]) -> list[str]:
    """Return the dashboard as a value of TypeScript, and the parts of its panels that Grafana types by their kind."""
    name = board["uid"].replace("-", "_")
    found = [f"export const {name}: Read<Dashboard> = {json.dumps(board)};"]
    for panel in board["panels"]:
        assert panel["type"] == "timeseries", panel["type"]
        part, custom = f"{name}_{panel['id']}", panel["fieldConfig"]["defaults"]["custom"]
        found.append(f"export const {part}: Read<Plot.Options> = {json.dumps(panel['options'])};")
        found.append(f"export const {part}_custom: Read<Partial<Plot.FieldConfig>> = {json.dumps(custom)};")
    return found


if __name__ == "__main__":
    sys.exit(main())
