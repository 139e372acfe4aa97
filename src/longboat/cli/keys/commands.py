"""``longboat keys``: make, list and revoke API keys of the running fleet, or of a file for a gateway of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longboat.cli.completion.names import complete_tenant
from longboat.cli.shared.command_list import CommandList

if TYPE_CHECKING:
    from longboat.cluster.ray.session import Session
    from longboat.core.policy import KeyRecord
    from longboat.spec.files.keys_file import KeyBook

__all__ = ("key_rows", "keys_app")

DAY_S = 86_400.0

keys_app = typer.Typer(cls=CommandList, no_args_is_help=True, rich_markup_mode=None)
File = Annotated[
    Path | None, typer.Option("--file", help="Key file of `longboat gateway run`, in place of the fleet's keys.")
]


@keys_app.command()
def create(
    tenant: Annotated[
        str,
        typer.Option(
            "--tenant",
            "-t",
            help="Tenant of the fleet file that the key belongs to.",
            autocompletion=complete_tenant,
        ),
    ],
    note: Annotated[str, typer.Option("--note", help="Note to show in the list.")] = "",
    expires_days: Annotated[
        float | None, typer.Option("--expires", help="Days until the key expires.  [default: never]")
    ] = None,
    file: File = None,
) -> None:
    """Make a key and print it: it is shown only now.

    Gateways take the key as soon as the command returns.
    """
    from longboat.cluster.ray.key_changes import add_key
    from longboat.core.errors import UserInputError
    from longboat.gateway.limits.keys import MAX_KEY_DAYS, new_key

    if expires_days is not None and not 0 < expires_days <= MAX_KEY_DAYS:
        raise UserInputError(
            f"a key cannot expire after {expires_days:g} days",
            hint=f"give --expires more than 0 and at most {MAX_KEY_DAYS} days, or leave it out",
        )
    _check_tenant(tenant)
    now_s = time.time()
    expires_s = None if expires_days is None else now_s + expires_days * DAY_S
    key, record = new_key(tenant, now_s=now_s, expires_s=expires_s, note=_one_line(note))
    _change(file, lambda book: replace(book, keys=(*book.keys, record)), lambda session: add_key(session, record))
    print(key, flush=True)
    typer.echo(f"key {record.key_id} of {tenant}: it is shown only now", err=True)


@keys_app.command(name="list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False, file: File = None
) -> None:
    """List the keys by id, with tenant and expiry.

    The keys themselves are never shown.
    """
    from longboat.cli.shared.cluster_at_hand import connect
    from longboat.cluster.ray.key_changes import read_keys, tenants_with_keys

    tenants: tuple[str, ...] = ()
    if file is not None:
        _check_file(file)
        keys = _book_in(file).keys
    else:
        with connect() as session:
            keys, tenants = read_keys(session).keys, tenants_with_keys(session)
    rows = key_rows(keys, time.time(), tenants)
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        _print_table(rows)
    else:
        typer.echo("no keys; longboat keys create --tenant NAME makes one", err=True)


@keys_app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key, as `longboat keys list` shows it.")],
    file: File = None,
) -> None:
    """Revoke a key: gateways refuse it once the command returns."""
    from longboat.cluster.ray.key_changes import remove_key, without_key

    if file is not None:
        _check_file(file)
    _change(file, lambda book: without_key(book, key_id), lambda session: remove_key(session, key_id))
    typer.echo(f"key {key_id} is revoked", err=True)


def key_rows(keys: Sequence[KeyRecord], now_s: float, tenants: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return what may be shown of keys, the oldest first. Times are Unix seconds.

    tenants: of the running fleet, whose keys open something; none: unknown
    """
    return [
        {
            "key_id": key.key_id,
            "tenant": key.tenant,
            "has_tenant": not tenants or key.tenant in tenants,
            "created_s": key.created_s,
            "expires_s": key.expires_s,
            "expired": key.expires_s is not None and now_s >= key.expires_s,
            "note": key.note,
        }
        for key in sorted(keys, key=lambda key: key.created_s)
    ]


def _change(file: Path | None, in_file: Callable[[KeyBook], KeyBook], in_fleet: Callable[[Session], KeyBook]) -> None:
    from longboat.cli.shared.cluster_at_hand import connect
    from longboat.cluster.ray.key_changes import keys_locked, wait_for_gateways
    from longboat.spec.files.keys_file import save_keys

    if file is not None:
        with keys_locked(file):
            save_keys(file, in_file(_book_in(file)))
        return
    with connect() as session:
        num_informed, num_all = wait_for_gateways(session, in_fleet(session))
    if num_informed < num_all or not num_all:
        typer.echo(
            f"{num_informed} of {num_all} gateways know of it so far; the others will when they report again", err=True
        )


def _book_in(file: Path) -> KeyBook:
    from longboat.spec.files.keys_file import KeyBook, load_keys, new_salt

    return load_keys(file) or KeyBook(salt=new_salt())


def _check_file(file: Path) -> None:
    """Raise UserInputError where there is no key file."""
    from longboat.core.errors import UserInputError

    if not file.exists():
        hint = f"longboat keys create --file {file} --tenant default makes it"
        raise UserInputError(f"there is no key file {file}", hint=hint)


def _check_tenant(name: str) -> None:
    """Raise UserInputError for a name that no `gateway.tenants` can have."""
    from longboat.core.errors import UserInputError
    from longboat.spec.types.gateway_values import WORD

    if not WORD.fullmatch(name):
        what = f"{name!r} cannot be the name of a tenant"
        raise UserInputError(what, hint="write 1 to 63 letters, digits, '.', '_' and '-': --tenant team-a")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def _print_table(rows: list[dict[str, Any]]) -> None:
    from longboat.cli.shared.console import make_console, simple_table

    table = simple_table("KEY", "TENANT", "MADE", "ENDS", "NOTE", wraps=("NOTE",))
    for row in rows:
        ends = "never" if row["expires_s"] is None else _day(row["expires_s"])
        ended = " (ended)" if row["expired"] else ""
        tenant = row["tenant"] if row["has_tenant"] else f"{row['tenant']} (not in the fleet file)"
        table.add_row(row["key_id"], tenant, _day(row["created_s"]), f"{ends}{ended}", row["note"])
    make_console().print(table)


def _day(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_s))
