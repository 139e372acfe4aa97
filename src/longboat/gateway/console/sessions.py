"""Sessions of people who signed in: a signed cookie that names the key, and the list of those that ended."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from longboat.core.policy import AdminCredential, KeyRecord, Policy
from longboat.core.sign_in import SignIn
from longboat.file_lock import FileLock
from longboat.gateway.sign_in.desk import SESSION_LIFE_S

__all__ = ("LIFE_S", "Credential", "Session", "Sessions", "cookie_line", "cookie_of", "cookie_value")

Credential = AdminCredential | KeyRecord | SignIn
"""What a session stands on: an admin's secret, a tenant's key, or the fleet's provider."""

LIFE_S = SESSION_LIFE_S
"""A session ends after this time, whatever its user does."""

_MAX_ENDED = 10_000
_MAX_COOKIE_CHARS = 1024


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What the cookie says. The key itself is not in it: its stored digest is part of what is signed."""

    id: str
    kind: str  # ``admin``, ``key`` or ``oidc``
    name: str  # of the admin or the person, or the public id of the tenant's key
    issued_s: float  # Unix seconds

    def has_ended(self, now_s: float) -> bool:
        return not self.issued_s <= now_s + 60.0 or now_s >= self.issued_s + LIFE_S


class _Ended(msgspec.Struct):
    """Sessions that were signed out before their time."""

    ids: dict[str, float] = {}  # session → when it began
    before_s: float = 0.0  # all sessions that began up to here ended: the list was full


_SESSION = msgspec.json.Decoder(Session)


class Sessions:
    """Makes and checks cookies. All processes of a node agree: they share the control token and the folder."""

    def __init__(self, control_token: str, control_socket: str) -> None:
        """control_socket: of this gateway or its parent; a file beside it lists ended sessions. Empty: memory does"""
        self._secret = hmac.digest(control_token.encode(), b"longboat console session", "sha256")
        self._path = Path(control_socket).parent / "console-sessions" if control_socket else None
        self._ended = _Ended()
        self._stamp: tuple[int, int] | None = None  # of the file, when it was read

    def begin(self, kind: str, credential: AdminCredential | KeyRecord, now_s: float) -> str:
        """Return the cookie's value for a person who presented this key."""
        name = credential.name if isinstance(credential, AdminCredential) else credential.key_id
        return self._cookie(Session(id=secrets.token_urlsafe(18), kind=kind, name=name, issued_s=now_s), credential)

    def begin_person(self, sign_in: SignIn, session_id: str, name: str, now_s: float) -> str:
        """Return the cookie's value for a person who comes from the provider."""
        return self._cookie(Session(id=session_id, kind="oidc", name=name, issued_s=now_s), sign_in)

    def _cookie(self, session: Session, credential: Credential) -> str:
        payload = base64.urlsafe_b64encode(msgspec.json.encode(session)).rstrip(b"=")
        return f"{payload.decode()}.{self._mac(payload, _digest(credential))}"

    def find(self, value: str, policy: Policy, now_s: float) -> tuple[Session, Credential] | None:
        """Return the session and what it was begun with; None where either is no longer good."""
        payload, dot, mac = value.partition(".")
        if not dot or len(value) > _MAX_COOKIE_CHARS:
            return None
        try:
            padded = payload + "=" * (-len(payload) % 4)
            session = _SESSION.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            return None
        credential = _credential(session, policy, now_s)
        digest = _digest(credential) if credential is not None else ""
        is_signed = hmac.compare_digest(self._mac(payload.encode(), digest).encode(), mac.encode())
        if not is_signed or credential is None or session.has_ended(now_s):
            return None
        ended = self._read_ended()
        return None if session.id in ended.ids or session.issued_s <= ended.before_s else (session, credential)

    def end(self, session: Session, now_s: float) -> None:
        """Sign out: no process of this node takes the cookie again."""
        if self._path is None:
            self._ended = _with_ended(self._ended, session, now_s)
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock.held(self._path.with_name(f"{self._path.name}.lock")):
            ended = _with_ended(self._read_ended(), session, now_s)
            part = Path(f"{self._path}.part")
            part.write_bytes(msgspec.json.encode(ended))
            part.chmod(0o600)
            part.replace(self._path)

    def csrf_of(self, session_id: str) -> str:
        """Return the token that changing requests of this session carry. Empty id: of those without a session."""
        return hmac.new(self._secret, b"csrf " + session_id.encode(), hashlib.sha256).hexdigest()

    def is_equal(self, presented: str, expected: str) -> bool:
        """Compare two tokens in a time that says nothing of them."""
        return hmac.compare_digest(presented.encode(), expected.encode())

    def _mac(self, payload: bytes, sha256: str) -> str:
        return hmac.new(self._secret, payload + b"." + sha256.encode(), hashlib.sha256).hexdigest()

    def _read_ended(self) -> _Ended:
        if self._path is None:
            return self._ended
        try:
            status = self._path.stat()
            if (stamp := (status.st_mtime_ns, status.st_ino)) != self._stamp:
                self._ended, self._stamp = msgspec.json.decode(self._path.read_bytes(), type=_Ended), stamp
        except FileNotFoundError:
            self._ended, self._stamp = _Ended(), None
        return self._ended


def cookie_of(port: int) -> str:
    """Return the cookie's name. Browsers share cookies between the ports of a host: each gateway has its own name."""
    return f"longboat_console_{port}"


def cookie_line(name: str, value: str, *, secure: bool) -> tuple[str, str]:
    """Return the header that gives the browser its cookie, or takes it away where the value is empty."""
    age_s = int(LIFE_S) if value else 0
    attributes = f"Path=/console; Max-Age={age_s}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"
    return "set-cookie", f"{name}={value}; {attributes}"


def cookie_value(name: str, noted: Mapping[bytes, bytes]) -> str:
    """Return the console's cookie of a request; empty where it has none."""
    for part in noted.get(b"cookie", b"").replace(b",", b";").split(b";"):
        found, _, value = part.strip().partition(b"=")
        if found == name.encode():
            return value.decode("latin-1")
    return ""


def _digest(credential: Credential) -> str:
    """Return what the cookie's signature binds a session to."""
    return credential.digest if isinstance(credential, SignIn) else credential.sha256


def _credential(session: Session, policy: Policy, now_s: float) -> Credential | None:
    """Return the key under the policy of now: one that was revoked, or has expired, ends its sessions."""
    if session.kind == "oidc":
        return policy.sign_in
    if session.kind == "admin":
        return next((admin for admin in policy.admins if admin.name == session.name), None)
    if session.kind != "key" or policy.auth == "none":
        return None
    record = next((record for record in policy.keys if record.key_id == session.name), None)
    return None if record is None or (record.expires_s is not None and now_s >= record.expires_s) else record


def _with_ended(ended: _Ended, session: Session, now_s: float) -> _Ended:
    """Add a session, and forget those whose time is over. A full list drops its older half, and ends all before it."""
    ids = {name: began_s for name, began_s in ended.ids.items() if now_s < began_s + LIFE_S}
    ids[session.id] = session.issued_s
    if len(ids) <= _MAX_ENDED:
        return _Ended(ids, ended.before_s)
    oldest_first = sorted(ids.items(), key=lambda entry: entry[1])
    dropped, kept = oldest_first[: _MAX_ENDED // 2], oldest_first[_MAX_ENDED // 2 :]
    return _Ended(dict(kept), max(ended.before_s, dropped[-1][1]))
