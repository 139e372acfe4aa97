"""``longboat dashboards DIR``: write dashboards for Grafana, and alerts with runbooks for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from longboat.core.errors import UserInputError

__all__ = ("dashboards",)


def dashboards(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to; it is created if it is missing.")],
    gateways: Annotated[
        list[str] | None,
        typer.Option(
            "--gateway",
            help="HOST:PORT of a gateway to scrape, with TLS https://HOST:PORT; repeatable.  [default: 127.0.0.1:8000]",
        ),
    ] = None,
    key_file: Annotated[
        str, typer.Option("--key-file", help="File with an admin key, as Prometheus will find it.")
    ] = "",
    discover: Annotated[
        bool, typer.Option("--discover", help="Let Prometheus ask these gateways for all others, and for the engines.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that you changed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Write dashboards for Grafana and alerts for Prometheus.

    Start both with DIR/compose.yaml; or import the files of DIR/grafana into your Grafana, and start Prometheus with
    DIR/prometheus.yaml.
    """
    from longboat.dashboards.files import all_files

    for gateway in gateways or ():
        _check_address(gateway)
    if key_file and not Path(key_file).is_absolute():
        hint = f"write --key-file {Path(key_file).absolute()}, or where Prometheus finds it"
        raise UserInputError(f"--key-file: {key_file!r} is a relative path", hint=hint)
    files = all_files(tuple(gateways or ("127.0.0.1:8000",)), key_file=key_file, discover=discover)
    try:
        _write(folder, files, force=force)
    except OSError as error:
        what = f"{error.filename or folder} cannot be written: {error.strerror}"
        raise UserInputError(what, hint="name a folder that you may write to") from None
    paths = [str(folder / name) for name in files]
    typer.echo(json.dumps({"files": paths}, indent=2) if as_json else "\n".join(paths))


def _write(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write the files. Raises UserInputError where one was changed, OSError."""
    if (changed := [name for name, text in files.items() if _differs(folder / name, text)]) and not force:
        raise UserInputError(
            f"{folder / changed[0]} was changed, or written with other options",
            hint="write to another folder, or add --force to write over it",
        )
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _differs(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") != text


def _check_address(gateway: str) -> None:
    host, colon, port = gateway.removeprefix("https://").removeprefix("http://").rpartition(":")
    if not (
        host
        and not set("/@?#") & set(host)
        and colon
        and port.isascii()
        and port.isdecimal()
        and 0 < int(port) < 1 << 16
    ):
        raise UserInputError(
            f"--gateway: {gateway!r} is not HOST:PORT",
            hint="write 10.0.0.5:8000 or [fd00::5]:8000, with TLS https://10.0.0.5:8000",
        )
