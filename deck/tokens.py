"""Who may use Deck: tokens as digests in a file of the state directory, effective without a restart."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

_log = logging.getLogger("deck.tokens")
_LOOK_AGAIN = 1.0
_DURATION = re.compile(r"(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_HEADERS = frozenset({b"x-api-key", b"api-key"})


class TokenError(ValueError):
    """A token cannot be made or found; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a token belongs to, and what it may do; `models` None = all."""

    name: str
    models: frozenset[str] | None = None
    admin: bool = False
    compatibility: str | None = None

    def may_use(self, profile: str) -> bool:
        """Tell whether the principal may use a model."""
        return self.models is None or profile in self.models


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One token as it is kept: never the token, only its digest."""

    name: str
    digest: str
    created: int
    expires: int | None = None
    models: tuple[str, ...] | None = None
    admin: bool = False
    compatibility: str | None = None

    def __repr__(self) -> str:
        return f"Entry({self.name!r})"

    def principal(self) -> Principal:
        """Return who it stands for."""
        models = None if self.models is None else frozenset(self.models)
        return Principal(name=self.name, models=models, admin=self.admin, compatibility=self.compatibility)


def parse_duration(text: str) -> int:
    """Return seconds of `30d`, `12h`, `90m`, `2w`.

    Raises:
        TokenError: it is none.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise TokenError(f"{text!r} is not a time; write 30d, 12h, 90m or 2w")
    return int(found[1]) * _SECONDS[found[2]]


def digest_of(token: bytes) -> bytes:
    """Return the SHA-256 of a token; it has 256 random bits, so that no slow hash is needed."""
    return hashlib.sha256(token).digest()


def credentials_of(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return every credential among the headers: Bearer, `x-api-key`, `api-key`."""
    found = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            if scheme.lower() == b"bearer" and rest.strip():
                found.append(rest.strip())
        elif name in _HEADERS and value.strip():
            found.append(value.strip())
    return found[:4]


class TokenStore:
    """The tokens of a file, and at most one of the environment.

    Args:
        path: `tokens.json`; its directory is made with mode 0700 when the first token is written.
        environment_token: one more token, kept as a digest in memory only.
    """

    def __init__(self, path: Path, environment_token: str | None = None) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._entries: tuple[Entry, ...] = ()
        self._known: list[tuple[bytes, int | None, Principal]] = []
        self._fixed = digest_of(environment_token.encode()) if environment_token else None
        self._looked = float("-inf")
        self._reload()

    @property
    def is_empty(self) -> bool:
        """True when there is no token at all."""
        self._reload()
        return not self._entries and self._fixed is None

    def entries(self) -> tuple[Entry, ...]:
        """Return the file's tokens."""
        self._reload()
        return self._entries

    def authenticate(self, credentials: Sequence[bytes], now: float) -> Principal | None:
        """Return whose credential one of these is; each is compared with every digest, in constant time."""
        clock = time.monotonic()
        if clock - self._looked > _LOOK_AGAIN:
            self._looked = clock
            self._reload()
        found: Principal | None = None
        for credential in credentials:
            digest = digest_of(credential)
            for known, expires, principal in self._known:
                if hmac.compare_digest(known, digest) and (expires is None or now < expires):
                    found = principal
        return found

    def create(
        self,
        name: str,
        *,
        models: Sequence[str] | None = None,
        admin: bool = False,
        expires_in: int | None = None,
        compatibility: str | None = None,
    ) -> tuple[Entry, str]:
        """Make a token and return its entry and, for this once, itself.

        Raises:
            TokenError: the name is taken.
        """
        with self._locked():
            if any(entry.name == name for entry in self._entries):
                raise TokenError(f"a token named {name!r} exists; revoke it first, or choose another name")
            token = "deck-" + secrets.token_urlsafe(32)
            now = int(time.time())
            entry = Entry(
                name=name,
                digest=digest_of(token.encode()).hex(),
                created=now,
                expires=None if expires_in is None else now + expires_in,
                models=tuple(models) if models is not None else None,
                admin=admin,
                compatibility=compatibility,
            )
            self._write((*self._entries, entry))
        return entry, token

    def revoke(self, name: str) -> None:
        """Remove a token.

        Raises:
            TokenError: there is none of that name.
        """
        with self._locked():
            kept = tuple(entry for entry in self._entries if entry.name != name)
            if len(kept) == len(self._entries):
                known = ", ".join(entry.name for entry in self._entries) or "none"
                raise TokenError(f"no token named {name!r}; known: {known}")
            self._write(kept)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold other writers off, and see what they wrote last."""
        import fcntl

        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._reload()
            yield
        finally:
            os.close(descriptor)

    def _reload(self) -> None:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return
            entries = _parse(self._path.read_bytes())
        except FileNotFoundError:
            stamp, entries = (0, 0), ()
        except (OSError, ValueError, TypeError, KeyError) as exc:
            _log.error("tokens in %s cannot be read, the last good ones stay: %s", self._path, type(exc).__name__)
            return
        self._stamp, self._entries = stamp, entries
        self._known = [(bytes.fromhex(entry.digest), entry.expires, entry.principal()) for entry in entries]
        if self._fixed is not None:
            self._known.append((self._fixed, None, Principal(name="environment", admin=True)))

    def _write(self, entries: tuple[Entry, ...]) -> None:
        content = json.dumps({"tokens": [asdict(entry) for entry in entries]}, indent=1).encode()
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".tokens")
        try:
            os.fchmod(descriptor, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self._path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._reload()


def _parse(content: bytes) -> tuple[Entry, ...]:
    entries = [Entry(**item) for item in json.loads(content)["tokens"]]
    for entry in entries:
        bytes.fromhex(entry.digest)
    return tuple(
        replace(entry, models=tuple(entry.models) if entry.models is not None else None) for entry in entries
    )
