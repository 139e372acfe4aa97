"""Errors of storage in plain words: without URLs and bodies, in which there may be signatures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from longboat.core.errors import TransferError

__all__ = ("MissingObjectError", "ObjectChangedError", "RefusedError", "lacking", "translated")

_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_HTTP = re.compile(r"- HTTP error: ([A-Za-z ]{1,80})")
_REFUSED_CODES = re.compile(
    r"<Code>(ExpiredToken|TokenRefreshRequired|InvalidToken|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|"
    r"RequestTimeTooSkewed|AuthenticationFailed|AuthorizationFailure)</Code>"
)
_REQUEST = "Error performing"
_KEY_REQUEST = re.compile(r"https?://(169\.254\.\d+\.\d+|metadata\.google\.internal)[:/]")
"""The machine's service of keys, which is asked where the environment has none."""
_KEY_WORD = re.compile(r"(?<![\w./-])(credentials?|tokens?)(?![\w/-]|\.\w)", re.IGNORECASE)
"""A word of its own: names of files, buckets and hosts may hold it."""
_LOOP = re.compile(
    r"File system loop found: (.+) points to an ancestor |"
    r"IO error for operation on (.+): Too many levels of symbolic links"
)
_CHAIN = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws, or the machine's role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login, or the machine's service account",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or a SAS token, or the machine's identity",
    "http": "an entry of ~/.netrc for the host",
    "https": "an entry of ~/.netrc for the host",
    "hf": "HF_TOKEN, or hf auth login",
    "file": "the user's rights to the files",
}


class RefusedError(TransferError):
    """The storage refuses the credentials, or there are none."""


class ObjectChangedError(TransferError):
    """An object is not the one that was listed."""


class MissingObjectError(TransferError):
    """An object, a bucket or a revision is not there."""


def translated(error: Exception, source: str, path: str = "") -> TransferError:
    """Return the project's error for one of the storage client's. source: as the fleet file names it."""
    text, kind = str(error), type(error).__name__
    place = f"{path} of {source}" if path else source
    scheme = source.partition(":")[0]
    if kind == "PreconditionError":
        return changed(source, path)
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or _REFUSED_CODES.search(text):
        hint = f"renew the key, or let it list and read; it is looked for in {_CHAIN.get(scheme, 'the environment')}"
        return RefusedError(f"the storage refuses to give {place}: {_cause(text)}", hint=hint)
    if kind == "NotSupportedError" and "Range request" in text:
        return RefusedError(
            f"{place} cannot be read in pieces: the server ignores the header Range",
            hint="serve the folder by nginx, Apache or Caddy (Python's http.server sends whole files only)",
        )
    if _lacks_key(text):  # before a missing object: a machine without a role answers 404 where its keys would be
        return RefusedError(f"no key was found to read {place}", hint=f"set {_CHAIN.get(scheme, 'the key')}")
    if isinstance(error, FileNotFoundError) or _is_missing(text):
        return MissingObjectError(
            f"there is no {place}: {_cause(text)}", hint="check the name, and weights.endpoint and weights.region"
        )
    if scheme == "file" and (loop := _LOOP.search(text)):
        return TransferError(
            f"{place} cannot be read: the link {loop[1] or loop[2]} leads back to itself",
            hint="remove the link, or name a folder without it",
        )
    return TransferError(f"{place} cannot be read: {_cause(text)}", hint="check that the storage is up and reachable")


def changed(source: str, path: str) -> ObjectChangedError:
    """Return the error for an object that is not the one that was listed."""
    return ObjectChangedError(
        f"{path} of {source} changed while it was fetched",
        hint="fetch it again when its upload is complete; what was fetched of the old contents is not used",
    )


def lacking(source: str, missing: Sequence[str], hint: str) -> TransferError:
    """Return the error for a source that lacks files of its model: an upload may be under way, or was cut."""
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return TransferError(f"{source} lacks {shown}", hint=hint)


def _lacks_key(text: str) -> bool:
    """Return whether an error is of the search for a key. The text of a failed request holds the URL."""
    if _REQUEST in text:
        return bool(_KEY_REQUEST.search(text))
    return not _STATUS.search(text) and bool(_KEY_WORD.search(text))


def _is_missing(text: str) -> bool:
    status = _STATUS.search(text)
    return bool(status and status[1] == "404")


def _cause(text: str) -> str:
    """Return what the storage gave as the reason: a code or a status, and nothing else of its words."""
    found = [match[1] for match in (_STATUS.search(text), _CODE.search(text)) if match]
    if found:
        return " ".join(found)
    if match := _HTTP.search(text):
        return match[1].strip()
    return "not found" if "not found" in text.lower() else "the request failed"
