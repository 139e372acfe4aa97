"""Makes Longboat's own virtual environment from the locks: ``python tools/bootstrap.py FOLDER``.

pip installs uv, uv installs everything else. Every file is checked against a hash; only the standard library is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from longboat.engines.environments.package_sources import package_sources  # noqa: E402

REQUIREMENTS = ROOT / "requirements"


def main(folder: Path) -> None:
    """Build a new environment in ``folder``; what was there is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    step("making the environment", sys.executable, "-m", "venv", folder)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes")
    step("installing uv", *pip, "--only-binary", ":all:", "-r", REQUIREMENTS / "bootstrap.txt")
    sources = package_sources(python=str(python))
    os.environ.update(sources.uv_variables())
    uv = (folder / "bin" / "uv", "pip")
    into: tuple[str | Path, ...] = ("--quiet", "--python", python, *sources.uv_arguments())
    locked: tuple[str | Path, ...] = ("--require-hashes", "--compile-bytecode", REQUIREMENTS / "dev.txt")
    step("installing Longboat's packages", *uv, "sync", *into, *locked)
    os.environ["LONGBOAT_MODULES_LATER"] = "1"  # make compiles them next, or beside what needs none
    step("installing Longboat itself", *uv, "install", *into, "--no-deps", "--no-build-isolation", "-e", ROOT)


def step(text: str, *command: str | Path) -> None:
    """Say what is being done, run the command, and say how long it took; the command's own messages pass through.

    Ends the program when the command fails.
    """
    print(f"{text} ...", flush=True)
    started_s = time.monotonic()
    code = subprocess.run([str(word) for word in command], cwd=ROOT, check=False).returncode
    if code != 0:
        sys.exit(f"{text}: failed. The lines above say why; the command was: {' '.join(map(str, command))}")
    print(f"  done in {time.monotonic() - started_s:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
