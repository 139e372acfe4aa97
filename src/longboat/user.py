"""Names the user of this process and the user's folder, also where the machine does not know the user.

In a container, processes may run as any number (OpenShift chooses one), without an entry in /etc/passwd.
"""

from __future__ import annotations

import getpass
import os
from pathlib import Path

__all__ = ("user_home", "user_name")


def user_home() -> Path:
    """Return the user's folder; ``/`` where neither HOME nor the machine names one, as container engines set HOME."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def user_name() -> str:
    """Return the user's name; the number where it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError: from Python 3.13 on
        return str(os.getuid())
