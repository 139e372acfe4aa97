"""Secrets that the file only points to: read from files and environment variables, never kept longer than needed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from longboat.core.errors import Problem, UserInputError
from longboat.core.policy import AdminCredential
from longboat.spec.types.gateway import AdminSpec

__all__ = ("admin_credentials", "read_secret")

MIN_ADMIN_SECRET = 16
MAX_SECRET_BYTES = 4096


def read_secret(*, file: str | None, variable: str | None, where: str, env: Mapping[str, str] = os.environ) -> str:
    """Read a secret from a file, else an environment variable, without white space around it. where: for the message.

    Raises UserInputError when it is not there, or empty; the message never holds the secret.
    """
    secret = _read_file(file, where) if file is not None else env.get(str(variable), "")
    if not (secret := secret.strip()):
        if file is not None:
            raise _refusal(where, f"{file} is empty", "write the secret into it")
        raise _refusal(where, f"the environment variable {variable} is not set here", f"export {variable}=…")
    return secret


def admin_credentials(admins: Sequence[AdminSpec], env: Mapping[str, str] = os.environ) -> tuple[AdminCredential, ...]:
    """Return the hashes by which admins are known.

    Raises UserInputError for all secrets that cannot be read, or are so short that their hash would give them away.
    """
    found: list[AdminCredential] = []
    problems: list[Problem] = []
    for admin in admins:
        try:
            found.append(_credential(admin, env))
        except UserInputError as error:
            problems += error.problems
    if problems:
        message = str(problems[0]) if len(problems) == 1 else f"{len(problems)} secrets of gateway.admin cannot be used"
        raise UserInputError(message, hint=problems[0].hint, problems=tuple(problems))
    return tuple(found)


def _credential(admin: AdminSpec, env: Mapping[str, str]) -> AdminCredential:
    if admin.sha256 is not None:
        return AdminCredential(name=admin.name, role=admin.role, sha256=admin.sha256)
    where = f"gateway.admin[{admin.name}]"
    secret = read_secret(file=admin.secret_file, variable=admin.secret_env, where=where, env=env)
    if len(secret) < MIN_ADMIN_SECRET:
        what = f"the secret has {len(secret)} characters, at least {MIN_ADMIN_SECRET} are needed"
        raise _refusal(where, what, "openssl rand -hex 24 makes one")
    return AdminCredential(name=admin.name, role=admin.role, sha256=hashlib.sha256(secret.encode()).hexdigest())


def _read_file(file: str, where: str) -> str:
    try:
        with Path(file).open("rb") as handle:
            return handle.read(MAX_SECRET_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise _refusal(where, f"{file} cannot be read: {reason}", "give a file that this user can read") from None


def _refusal(where: str, what: str, hint: str) -> UserInputError:
    problem = Problem(where=where, what=what, hint=hint)
    return UserInputError(str(problem), hint=hint, problems=(problem,))
