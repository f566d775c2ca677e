"""Who may use Deck: tokens by their digests, in one file that can change while Deck runs.

Knows how tokens are made, kept and compared. Does not know which routes or models there are. A token's text exists only
where it is made; what is kept is its SHA-256, and 256 random bits need no slower hash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, StringConstraints, ValidationError

from deck import json
from deck.errors import DeckError, ErrorKind, invalid
from deck.profile import Compatibility
from deck.settings import Table, faults
from deck.settings import parse_duration as parse_duration

ENVIRONMENT = "environment"
_CHECK_EVERY = 1.0
_SHORT = 16
_log = logging.getLogger("deck.tokens")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Signature = tuple[int, int, int, int]
_UNREADABLE: Signature = (-1, -1, -1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks, and what it may do; `models` are profile ids, None = all."""

    name: str
    models: frozenset[str] | None
    admin: bool
    compatibility: Compatibility | None

    def may_use(self, profile_id: str) -> bool:
        """Say whether it may use the model."""
        return self.models is None or profile_id in self.models


class Entry(Table):
    """One token as it is kept; times are UNIX seconds, `expires` None = never. `id` tells it apart and is no secret."""

    id: str
    name: Name
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(repr=False)
    models: tuple[str, ...] | None = None
    admin: StrictBool = False
    compatibility: Compatibility | None = None
    created: StrictInt
    expires: StrictInt | None = None

    def is_expired(self, now: float) -> bool:
        """Say whether its time is over."""
        return self.expires is not None and now >= self.expires

    def principal(self) -> Principal:
        """Return who it belongs to."""
        models = None if self.models is None else frozenset(self.models)
        return Principal(name=self.name, models=models, admin=self.admin, compatibility=self.compatibility)


class _Document(Table):
    version: Literal[1]
    tokens: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """What one credential is compared with."""

    digest: bytes = dataclasses.field(repr=False)
    expires: float
    principal: Principal


class TokenStore:
    """The tokens of a state directory, and the one of the environment.

    Args:
        path: the file, `tokens.json`; it and its directory need not exist.
        environment_token: a token with every right that is in no file.
        clock: monotonic; the file is looked at again after about a second of it.
        now: UNIX time, for what is created.
    """

    def __init__(
        self,
        path: Path,
        environment_token: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._clock = clock
        self._now = now
        self._fixed = _of_environment(environment_token)
        self._entries: tuple[Entry, ...] = ()
        self._known: tuple[_Known, ...] = self._fixed
        self._signature: Signature | None = None
        self._fault: str | None = None
        self._next_check = clock() + _CHECK_EVERY
        self._has_read = False
        self._reload()
        self._has_read = True

    def __repr__(self) -> str:
        return f"TokenStore({str(self._path)!r}, {len(self._known)} tokens)"

    @property
    def directory(self) -> Path:
        """Where the tokens are kept."""
        return self._path.parent

    @property
    def fault(self) -> str | None:
        """Why the file cannot be used, None = it can, or is not there; the tokens known before stay in force."""
        return self._fault

    @property
    def is_empty(self) -> bool:
        """Whether there is no token at all, as before the first start; a file that cannot be used is not empty."""
        return not self._known and self._fault is None

    @property
    def admits_nobody(self) -> bool:
        """Whether no token is in force."""
        return not self._known

    def entries(self) -> tuple[Entry, ...]:
        """Return the tokens of the file, in the order they were made."""
        self._refresh()
        return self._entries

    def authenticate(self, credentials: Sequence[bytes], now: float) -> Principal | None:
        """Return who the first valid credential belongs to, None if none is valid.

        The time it takes depends on how many credentials and tokens there are, not on which of them match.

        Args:
            credentials: as of `credentials_of`.
            now: UNIX time.
        """
        if self._clock() >= self._next_check:
            self._refresh()
        found: Principal | None = None
        for credential in credentials:
            digest = hashlib.sha256(credential).digest()
            for known in self._known:
                is_same = hmac.compare_digest(known.digest, digest)
                if is_same and now < known.expires and found is None:
                    found = known.principal
        return found

    def create(
        self,
        name: str,
        models: Iterable[str] | None = None,
        admin: bool = False,
        expires_in: float | None = None,
        compatibility: Compatibility | None = None,
    ) -> tuple[Entry, str]:
        """Make a token and keep its digest; return its entry and its text, which nobody can tell again.

        Raises:
            DeckError: the name is taken or no name, or the file cannot be read or written.
        """
        plaintext = "deck-" + secrets.token_urlsafe(32)
        created = int(self._now())
        try:
            entry = Entry(
                id=secrets.token_hex(4),
                name=name,
                digest=hashlib.sha256(plaintext.encode()).hexdigest(),
                models=None if models is None else tuple(models),
                admin=admin,
                compatibility=compatibility,
                created=created,
                expires=None if expires_in is None else created + int(expires_in),
            )
        except ValidationError as exc:
            raise invalid(f"token {name[:100]!r}: {'; '.join(faults(exc, Entry))}") from None
        with self._changing() as entries:
            if name == ENVIRONMENT or any(item.name == name for item in entries):
                raise invalid(f"there is a token named {name!r} already; revoke it first or choose another name")
            self._write([*entries, entry])
        return entry, plaintext

    def revoke(self, name: str) -> Entry:
        """Remove a token; a running Deck refuses it within about a second.

        Raises:
            DeckError: there is none of that name, or the file cannot be read or written.
        """
        with self._changing() as entries:
            found = next((item for item in entries if item.name == name), None)
            if found is None:
                known = ", ".join(item.name for item in entries) or "none"
                raise DeckError(ErrorKind.NOT_FOUND, f"no token named {name[:100]!r}; known: {known}")
            self._write([item for item in entries if item is not found])
        return found

    def _refresh(self) -> None:
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + _CHECK_EVERY
            self._reload()

    def _reload(self) -> None:
        """Take over the file if it changed; one that cannot be used leaves what was known in force."""
        try:
            signature = _signature(os.stat(self._path))
        except FileNotFoundError:
            signature = None
        except OSError as exc:
            if self._fault is None:
                self._spoil(f"{self._path} cannot be read: {exc.strerror}")
            self._signature = _UNREADABLE
            return
        if signature == self._signature:
            return
        self._signature = signature
        try:
            entries = _read(self._path)
        except DeckError as error:
            self._spoil(error.message)
            return
        self._fault = None
        self._entries = entries
        self._known = (*self._fixed, *(_known(entry) for entry in entries))

    def _spoil(self, fault: str) -> None:
        self._fault = fault
        if self._has_read:  # else whoever made this store says so, in his own words
            _log.error("%s; the tokens known before stay in force", fault)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[Entry, ...]]:
        """Give the entries of the file while no other process changes it, then take over what became of it."""
        directory = self._path.parent
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(directory, os.O_RDONLY)
        except OSError as exc:
            raise DeckError(ErrorKind.INTERNAL, f"{directory} cannot be used for tokens: {exc.strerror}") from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield _read(self._path)
            os.fsync(lock)
        finally:
            os.close(lock)
        self._reload()

    def _write(self, entries: Iterable[Entry]) -> None:
        """Replace the file at once and durably; only its owner may read it."""
        content = json.pretty({"version": 1, "tokens": [entry.model_dump(mode="json") for entry in entries]})
        temporary = ""
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=".tokens-", dir=self._path.parent)
            with open(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(descriptor, 0o600)
                file.write(content + "\n")
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, self._path)
        except OSError as exc:
            if temporary:
                Path(temporary).unlink(missing_ok=True)
            raise DeckError(ErrorKind.INTERNAL, f"{self._path} cannot be written: {exc.strerror}") from exc


def credentials_by_name(headers: Mapping[bytes, bytes]) -> list[bytes]:
    """Return what `credentials_of` does, from headers of which none stands twice."""
    sent = headers.get(b"authorization")
    if sent is None or b"x-api-key" in headers or b"api-key" in headers:
        return credentials_of(headers.items())
    if sent[:7] == b"Bearer ":
        credential = sent[7:].strip()
        return [credential] if credential else []
    return credentials_of(headers.items())


def credentials_of(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return every credential among ASGI headers: bearer tokens, `x-api-key` and `api-key`."""
    found = []
    for name, value in headers:
        match name.lower():
            case b"authorization":
                scheme, _, credential = value.strip().partition(b" ")
                credential = credential.strip() if scheme.lower() == b"bearer" else b""
            case b"x-api-key" | b"api-key":
                credential = value.strip()
            case _:
                continue
        if credential and credential not in found:
            found.append(credential)
    return found


def _of_environment(token: str | None) -> tuple[_Known, ...]:
    token = (token or "").strip()
    if not token:
        return ()
    if len(token) < _SHORT:
        _log.warning("DECK_TOKEN is shorter than %d characters and may be guessed", _SHORT)
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
    principal = Principal(name=ENVIRONMENT, models=None, admin=True, compatibility=None)
    return (_Known(digest, float("inf"), principal),)


def _known(entry: Entry) -> _Known:
    expires = float("inf") if entry.expires is None else float(entry.expires)
    return _Known(bytes.fromhex(entry.digest), expires, entry.principal())


def _signature(status: os.stat_result) -> Signature:
    # The change time too: a new owner or mode may let a file be read that could not be before.
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _read(path: Path) -> tuple[Entry, ...]:
    """Return the entries of the file, none if there is no file.

    Raises:
        DeckError: it cannot be used; the message holds nothing of its content.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            document = json.loads(file.read())
    except FileNotFoundError:
        return ()
    except OSError as exc:
        raise DeckError(ErrorKind.INTERNAL, f"{path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise DeckError(ErrorKind.INTERNAL, f"{path} is not JSON: {exc}") from exc
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning("%s is open to others than its owner; set it right with: chmod 600", path)
    try:
        return _Document.model_validate(document).tokens
    except ValidationError as exc:
        found = "; ".join(faults(exc, _Document))
        raise DeckError(ErrorKind.INTERNAL, f"{path} is no file of tokens: {found}") from None
