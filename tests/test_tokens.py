"""Tokens: how they are made, kept, compared and taken back."""

from __future__ import annotations

import argparse
import hashlib
import hmac
import logging
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deck import cli_token, json
from deck.errors import DeckError, ErrorKind
from deck.tokens import ENVIRONMENT, Principal, TokenStore, credentials_of, parse_duration

NOW = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state" / "tokens.json"


@pytest.fixture
def store(path: Path, clock: Clock) -> TokenStore:
    return TokenStore(path, None, clock=clock, now=lambda: NOW)


@pytest.fixture(autouse=True)
def ordinary_umask() -> Iterator[None]:
    old = os.umask(0o022)
    yield
    os.umask(old)


def who(store: TokenStore, *tokens: str, now: float = NOW) -> Principal | None:
    return store.authenticate([token.encode() for token in tokens], now)


def name_of(store: TokenStore, *tokens: str, now: float = NOW) -> str | None:
    principal = who(store, *tokens, now=now)
    return principal.name if principal else None


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_random_and_only_its_digest_is_kept(store: TokenStore, path: Path) -> None:
    entry, token = store.create("laptop")
    _, other = store.create("phone")
    assert token.startswith("deck-")
    assert len(token) == len("deck-") + 43
    assert token != other
    kept = path.read_text(encoding="utf-8")
    assert token not in kept
    assert token[5:17] not in kept
    assert entry.digest == hashlib.sha256(token.encode()).hexdigest()
    assert name_of(store, token) == "laptop"


def test_only_the_owner_may_read_the_file(store: TokenStore, path: Path) -> None:
    store.create("laptop")
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700
    assert [item.name for item in path.parent.iterdir()] == ["tokens.json"]


def test_a_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    """It may be anyone's: `--state /tmp` must not lock everybody out."""
    tmp_path.chmod(0o755)
    TokenStore(tmp_path / "tokens.json", None).create("laptop")
    assert mode(tmp_path) == 0o755
    assert mode(tmp_path / "tokens.json") == 0o600


def test_the_file_is_replaced_durably_and_at_once(
    store: TokenStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("laptop")
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        steps.append("fsync")
        fsync(descriptor)

    def replaced(old: str, new: Path) -> None:
        steps.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    store.create("phone")
    assert steps == ["fsync", "replace", "fsync"]


def test_a_failed_write_leaves_the_old_file(store: TokenStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, token = store.create("laptop")
    before = path.read_bytes()

    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DeckError, match="No space left"):
        store.create("phone")
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == ["tokens.json"]
    assert name_of(store, token) == "laptop"


def test_changes_of_several_writers_all_count(path: Path) -> None:
    threads = [threading.Thread(target=TokenStore(path, None).create, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.name for entry in TokenStore(path, None).entries()) == [f"t{number}" for number in range(8)]


def test_a_revoked_token_is_refused_without_a_restart(store: TokenStore, path: Path, clock: Clock) -> None:
    _, token = store.create("laptop")
    TokenStore(path, None).revoke("laptop")
    assert name_of(store, token) == "laptop"  # within the second
    clock.time += 1.0
    assert name_of(store, token) is None


def test_a_token_made_elsewhere_is_accepted_without_a_restart(store: TokenStore, path: Path, clock: Clock) -> None:
    _, token = TokenStore(path, None).create("laptop")
    clock.time += 1.0
    assert name_of(store, token) == "laptop"


def test_the_file_is_looked_at_once_a_second(store: TokenStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    status = os.stat

    def counted(target: Path) -> os.stat_result:
        nonlocal looks
        looks += 1
        return status(target)

    monkeypatch.setattr(os, "stat", counted)
    for _ in range(30):
        clock.time += 0.1
        store.authenticate([b"x"], NOW)
    assert looks in (2, 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 2, "tokens": []}',
        b'{"version": 1, "tokens": [{"name": "x", "digest": "SECRET"}]}',
    ],
)
def test_a_broken_file_keeps_the_last_good_tokens(
    store: TokenStore, path: Path, clock: Clock, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _, token = store.create("laptop")
    good = path.read_bytes()
    path.write_bytes(content)
    for _ in range(3):
        clock.time += 1.0
        assert name_of(store, token) == "laptop"
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert str(path) in caplog.text
    assert "SECRET" not in caplog.text
    with pytest.raises(DeckError, match=r"tokens\.json"):
        store.create("phone")
    assert path.read_bytes() == content
    path.write_bytes(good)
    clock.time += 1.0
    assert name_of(store, token) == "laptop"
    store.create("phone")


def test_a_broken_file_at_the_start_admits_nobody_and_is_not_empty(path: Path) -> None:
    """Else the first start would offer a new token as if none had been made."""
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    store = TokenStore(path, None)
    assert not store.is_empty
    assert store.admits_nobody
    assert store.fault is not None
    assert str(path) in store.fault
    assert who(store, "x") is None


def test_a_file_that_may_be_read_again_is(
    store: TokenStore, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chmod` and `chown` change no time of the content."""
    _, token = store.create("laptop")
    before, opened = os.stat(path), Path.open

    def refuse(self: Path, *args: Any, **options: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied")
        return opened(self, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    late = TokenStore(path, None, clock=clock)
    assert late.fault is not None
    monkeypatch.setattr(Path, "open", opened)
    path.chmod(0o400)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.time += 1.0
    assert name_of(late, token) == "laptop"
    assert late.fault is None


def test_a_removed_file_takes_all_tokens_with_it(store: TokenStore, path: Path, clock: Clock) -> None:
    _, token = store.create("laptop")
    path.unlink()
    clock.time += 1.0
    assert name_of(store, token) is None
    assert store.is_empty


def test_a_file_that_others_can_read_is_warned_of(
    store: TokenStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.create("laptop")
    path.chmod(0o644)
    TokenStore(path, None)
    assert "chmod 600" in caplog.text


def test_an_expired_token_is_refused(store: TokenStore) -> None:
    entry, token = store.create("ci", expires_in=60)
    assert entry.expires == NOW + 60
    assert name_of(store, token, now=NOW + 59.9) == "ci"
    assert name_of(store, token, now=NOW + 60) is None


def test_any_one_valid_credential_is_enough(store: TokenStore) -> None:
    _, token = store.create("laptop")
    _, old = store.create("old", expires_in=1)
    assert name_of(store, "sk-dummy", token) == "laptop"
    assert name_of(store, token, "sk-dummy") == "laptop"
    assert name_of(store, old, token, now=NOW + 5) == "laptop"
    assert name_of(store) is None
    assert name_of(store, "") is None
    assert name_of(store, token[:-1]) is None
    assert name_of(store, token + "x") is None


def test_every_token_is_compared_in_constant_time(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where the match lies nor whether there is one may change how much is compared."""
    tokens = [store.create(f"t{number}")[1] for number in range(5)]
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def counted(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    for sent in ([tokens[0]], [tokens[4]], ["wrong"], [tokens[2], tokens[0]]):
        compared.clear()
        who(store, *sent)
        assert len(compared) == 5 * len(sent)
        assert all(len(left) == len(right) == 32 for left, right in compared)


def test_the_token_of_the_environment_has_every_right(path: Path) -> None:
    store = TokenStore(path, " from-the-environment-ö ")
    principal = who(store, "from-the-environment-ö")
    assert principal == Principal(name=ENVIRONMENT, models=None, admin=True, compatibility=None)
    assert not store.is_empty
    assert store.entries() == ()
    assert not path.parent.exists()


@pytest.mark.parametrize("token", [None, "", "  "])
def test_an_empty_token_of_the_environment_is_none(path: Path, token: str | None) -> None:
    store = TokenStore(path, token)
    assert store.is_empty
    assert who(store, "") is None


def test_a_short_token_of_the_environment_is_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TokenStore(path, "hunter2")
    assert "DECK_TOKEN" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_principal_may_use_its_models_only(store: TokenStore) -> None:
    _, token = store.create("ci", ["a", "b"], compatibility="lenient")
    principal = who(store, token)
    assert principal is not None
    assert principal.may_use("a")
    assert not principal.may_use("c")
    assert principal.compatibility == "lenient"
    assert not principal.admin
    assert Principal(name="x", models=None, admin=False, compatibility=None).may_use("anything")
    assert not Principal(name="x", models=frozenset(), admin=False, compatibility=None).may_use("a")


def test_no_secret_is_in_any_repr(path: Path) -> None:
    store = TokenStore(path, "environment-canary-1")
    entry, token = store.create("laptop")
    shown = f"{store!r} {store!s} {entry!r} {entry!s} {store.entries()!r} {who(store, token)!r} {store._known!r}"
    for secret in (token, token[5:], entry.digest, "environment-canary-1"):
        assert secret not in shown
    assert repr(bytes.fromhex(entry.digest)) not in shown


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "tab\t", "ok\n", "ö"])
def test_a_name_is_plain(store: TokenStore, name: str) -> None:
    with pytest.raises(DeckError) as caught:
        store.create(name)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize("name", ["laptop", ENVIRONMENT])
def test_a_name_is_given_once(store: TokenStore, name: str) -> None:
    store.create("laptop")
    with pytest.raises(DeckError, match="already"):
        store.create(name)


def test_revoking_what_is_not_there_names_what_is(store: TokenStore) -> None:
    store.create("laptop")
    with pytest.raises(DeckError, match="known: laptop") as caught:
        store.revoke("phone")
    assert caught.value.kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"authorization", b"Bearer abc")], [b"abc"]),
        ([(b"Authorization", b"  bEARER   abc  ")], [b"abc"]),
        ([(b"x-api-key", b" abc ")], [b"abc"]),
        ([(b"api-key", b"abc")], [b"abc"]),
        ([(b"authorization", b"Bearer a"), (b"x-api-key", b"b"), (b"api-key", b"c")], [b"a", b"b", b"c"]),
        ([(b"x-api-key", b"a"), (b"authorization", b"Bearer a")], [b"a"]),
        ([(b"authorization", b"Basic abc")], []),
        ([(b"authorization", b"Bearer")], []),
        ([(b"authorization", b"Bearer  ")], []),
        ([(b"authorization", b"abc")], []),
        ([(b"x-api-key", b"")], []),
        ([(b"cookie", b"Bearer abc")], []),
        ([], []),
    ],
)
def test_credentials_are_found_in_every_usual_header(headers: list[tuple[bytes, bytes]], expected: list[bytes]) -> None:
    assert credentials_of(headers) == expected


def test_durations() -> None:
    assert parse_duration("30d") == 30 * 86400
    assert parse_duration("1h30m") == 5400
    with pytest.raises(ValueError, match="duration"):
        parse_duration("soon")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DECK_CONFIG", raising=False)
    return tmp_path / "state"


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="deck")
    cli_token.add(parser.add_subparsers())
    parsed = parser.parse_args(["token", *arguments])
    status: int = parsed.run(parsed)
    return status


def test_the_command_makes_lists_and_revokes(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--state", str(state)]
    assert run("create", "ci", "--models", "a, b", "--admin", "--expires", "30d", *where) == 0
    made = capsys.readouterr()
    token = made.out.strip()
    assert made.out == f"{token}\n"
    assert token not in made.err
    assert "not shown again" in made.err
    assert name_of(TokenStore(state / "tokens.json", None), token, now=0) == "ci"
    assert mode(state / "tokens.json") == 0o600

    assert run("list", *where) == 0
    listed = capsys.readouterr()
    heading, row = listed.out.splitlines()
    assert heading.split()[:3] == ["ID", "NAME", "MODELS"]
    assert row.split()[1:4] == ["ci", "a,b", "admin"]
    digest = json.loads((state / "tokens.json").read_bytes())["tokens"][0]["digest"]
    assert token[5:] not in listed.out
    assert digest not in listed.out

    assert run("revoke", "ci", *where) == 0
    assert "is revoked" in capsys.readouterr().err
    assert run("list", *where) == 0
    assert "no tokens yet" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--expires", "soon"], ["--expires", "0"], ["--models", ","]])
def test_the_command_refuses_options_that_mean_nothing(
    state: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("create", "ci", *option, "--state", str(state))
    assert option[0] in capsys.readouterr().err
    assert not state.exists()


@pytest.mark.parametrize("action", [[], ["create"], ["list"], ["revoke"]])
def test_help_teaches_by_example(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(*action, "--help")
    shown = capsys.readouterr().out
    assert "example" in shown
    assert f"deck token {' '.join(action)}".strip() in shown
