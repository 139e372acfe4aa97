"""What is wrong with a file beside its mistakes of shape, and needs no machine to be found."""

from __future__ import annotations

from longboat.core.errors import Problem, UserInputError
from longboat.core.policy import AdminCredential
from longboat.engines.fleet_checks import model_problems, source_problems
from longboat.spec.files.load import Reading
from longboat.spec.files.readable import ReadableModel
from longboat.spec.secrets import admin_credentials

__all__ = ("problems_beside_mistakes", "read_admins")


def problems_beside_mistakes(reading: Reading) -> list[Problem]:
    """Return what else is wrong with models that have mistakes: with their sources, and with what their engines do."""
    return [problem for model in reading.others for problem in model.placed(_problems(model))]


def read_admins(reading: Reading) -> tuple[tuple[AdminCredential, ...], list[Problem]]:
    """Return the admins of the file, and what is wrong with their secrets."""
    try:
        return admin_credentials(reading.admins), []
    except UserInputError as error:
        return (), list(error.problems)


def _problems(model: ReadableModel) -> list[Problem]:
    found = [*source_problems(model.spec, model.position)]
    return found + model_problems(model.spec, model.position) if model.has_engine else found
