"""A reload: what it changes, that a wrong profile changes nothing, and that answers go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_support import BODY, TOKEN, App, app, error_of

from deck.catalog import Catalog
from deck.contracts import Facts
from deck.errors import DeckError, ErrorKind, UnheardError
from deck.exchange import Exchange
from deck.profile import Profile
from deck.reload import Change, compare
from deck.serving import NOBODY
from deck.testing.fake_llama import FakeLlama, Received, Reply, say


def profile(name: str, **more: Any) -> Profile:
    server = {"model": f"/{name}.gguf", **more.pop("server", {})}
    return Profile.model_validate({"id": name, "server": server, **more})


def changed(old: Profile, new: Profile) -> Change:
    return compare(Catalog([old]), Catalog([new]))


def test_what_comes_and_goes() -> None:
    change = compare(Catalog([profile("a"), profile("b")]), Catalog([profile("b"), profile("c")]))
    assert change == Change(added=("c",), removed=("a",))


def test_the_same_changes_nothing() -> None:
    assert changed(profile("a"), profile("a")).is_empty


@pytest.mark.parametrize(
    "server", [{"ctx_size": 8192}, {"parallel": 2}, {"args": ["--flash-attn", "on"]}, {"env": {"A": "b"}}], ids=str
)
def test_what_reaches_the_process_launches_it_anew(server: dict[str, Any]) -> None:
    assert changed(profile("a"), profile("a", server=server)) == Change(relaunched=("a",))


@pytest.mark.parametrize(
    "more",
    [
        {"aliases": ["b"]},
        {"defaults": {"temperature": 0.5}},
        {"limits": {"max_tokens": 10}},
        {"schedule": {"pinned": True}},
        {"server": {"ttl": "1h"}},
        {"server": {"stall_timeout": "1m"}},
        {"compatibility": "lenient"},
    ],
    ids=str,
)
def test_what_does_not_reach_the_process_leaves_it(more: dict[str, Any]) -> None:
    assert changed(profile("a"), profile("a", **more)) == Change(changed=("a",))


def test_a_change_is_told_in_words() -> None:
    assert Change().told() == "nothing has changed"
    change = Change(added=("m4", "m5"), removed=("m3",), relaunched=("b",), changed=("c",))
    assert change.told() == "m4, m5 added; m3 removed; b relaunched; c changed, server kept"
    assert Change(added=tuple(f"m{number}" for number in range(100))).told().endswith(", m19 and 80 more added")


class Changing:
    """A Deck whose directory of profiles changes."""

    def __init__(self, running: App, directory: Path) -> None:
        self.running = running
        self.directory = directory

    def write(self, name: str, text: str) -> None:
        server = f'[server]\nurl = "{self.running.fake.url}"\n'
        (self.directory / f"{name}.toml").write_text(text.replace("{server}", server), encoding="utf-8")

    def reload(self, **options: Any) -> dict[str, list[str]]:
        async def run() -> dict[str, list[str]]:
            return self.running.deck.reload(**options).shown()

        return self.running.runner.run(run())

    def asked(self, model: str) -> int:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        return self.running.chat(json=body).status_code


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Changing]:
    directory = tmp_path / "profiles"
    with app(tmp_path, lambda request: say("Hello")) as running:
        changing = Changing(running, directory)
        changing.reload()  # the shipped profiles, which the application of a test starts without
        yield changing


def test_a_new_profile_is_served_and_a_removed_one_is_not(changing: Changing) -> None:
    assert changing.asked("m3") == 404
    changing.write("m3", 'id = "m3"\n{server}')
    (changing.directory / "m2.toml").unlink()
    assert changing.reload() == {"added": ["m3"], "removed": ["m2"], "relaunched": [], "changed": []}
    assert changing.asked("m3") == 200
    assert changing.asked("m2") == 404
    assert changing.asked("m1") == 200


def test_what_did_not_change_is_one_and_the_same_for_all(changing: Changing) -> None:
    """Or every later request to its server would be measured as if that were not there."""
    assert changing.asked("m1") == 200
    changing.write("m3", 'id = "m3"\n{server}')
    changing.reload()
    deck = changing.running.deck
    server, match = deck.board.server("m1"), deck.pipeline.catalog.resolve("m1")
    assert server is not None
    assert match is not None
    assert server.profile is match.profile


def test_what_was_prepared_before_a_removal_starts_nothing(changing: Changing) -> None:
    deck = changing.running.deck
    surface = deck.pipeline.plugins.surfaces["chat"]
    exchange = Exchange("x", surface, NOBODY, "s" * 40, 0.0)
    deck.pipeline.prepare(exchange, {"model": "m2", "messages": [{"role": "user", "content": "hi"}]})
    (changing.directory / "m2.toml").unlink()
    changing.reload()
    with pytest.raises(DeckError, match="the model 'm2' was removed"):
        changing.running.runner.run(deck.pipeline.run(exchange, lambda events: None))
    assert deck.board.server("m2") is None


def test_what_is_asked_again_of_a_model_that_was_removed_meanwhile_starts_nothing(
    changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    deck = changing.running.deck
    assert changing.asked("m2") == 200
    asked = len(changing.running.fake.asked)

    async def post(*args: Any) -> None:
        raise UnheardError(ErrorKind.UNAVAILABLE, "it had died")

    async def has_ended(server: Any) -> bool:
        (changing.directory / "m2.toml").unlink()
        deck.reload()
        return True

    monkeypatch.setattr(deck.pipeline._client, "post", post)
    monkeypatch.setattr(deck.board, "has_ended", has_ended)
    assert changing.asked("m2") == 404
    assert len(changing.running.fake.asked) == asked


def test_the_notes_of_what_is_asked_again_stand_once(changing: Changing, monkeypatch: pytest.MonkeyPatch) -> None:
    deck = changing.running.deck
    assert changing.asked("m1") == 200
    exchange = Exchange("x", deck.pipeline.plugins.surfaces["chat"], NOBODY, "s" * 40, 0.0)
    exchange.report.ignored("before", "it stays")
    tries = []

    async def once() -> int:
        exchange.server = deck.board.server("m1")
        exchange.report.ignored("field", "as it is shaped")
        tries.append(len(exchange.report.notes))
        if len(tries) == 1:
            raise UnheardError(ErrorKind.UNAVAILABLE, "it had died")
        return 1

    async def has_ended(server: Any) -> bool:
        return True

    monkeypatch.setattr(deck.board, "has_ended", has_ended)
    assert changing.running.runner.run(deck.pipeline.again(exchange, once)) == 1
    assert tries == [2, 2]


def test_what_was_prepared_before_a_change_leaves_nothing_of_it(changing: Changing) -> None:
    """It is shaped after the reload, by the profile that it was prepared under; the next one is not."""
    deck = changing.running.deck
    surface = deck.pipeline.plugins.surfaces["chat"]

    def prepared(**fields: Any) -> Exchange:
        exchange = Exchange("x", surface, NOBODY, "s" * 40, 0.0)
        messages = [{"role": "user", "content": "hi"}]
        deck.pipeline.prepare(exchange, {"model": "m1", "messages": messages, "temperature": 1.5, **fields})
        return exchange

    facts, before = Facts(), prepared()
    changing.write("m1", 'id = "m1"\n{server}\n[force]\ntemperature = 0.125\n[limits]\nmax_tokens = 7\n')
    assert changing.reload()["changed"] == ["m1"]
    assert deck.pipeline.shape(before, facts).body["temperature"] == 1.5
    after = deck.pipeline.shape(prepared(), facts)
    assert (after.body["temperature"], after.body["max_tokens"]) == (0.125, 7)
    assert deck.pipeline.shape(before, facts).body["temperature"] == 1.5
    assert deck.pipeline.shape(prepared(max_tokens=9), facts).body["max_tokens"] == 7


def test_what_is_to_be_up_is_started_where_it_changed_and_keeps_its_failures_elsewhere(changing: Changing) -> None:
    warm = 'id = "{name}"\n{{server}}\n[schedule]\nkeep_warm = true\n'
    started: list[str] = []
    changing.running.deck.board.preload = lambda profile: started.append(profile.id)  # type: ignore[method-assign]
    changing.write("m3", warm.format(name="m3"))
    changing.reload()
    assert started == ["m3"]
    changing.write("m4", warm.format(name="m4"))
    changing.reload()
    assert started == ["m3", "m4"]
    changing.write("m4", warm.format(name="m4") + "priority = 1\n")
    changing.reload()
    assert started == ["m3", "m4", "m4"]


def test_what_it_did_is_logged_in_words(changing: Changing, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "deck"):
        changing.write("m3", 'id = "m3"\n{server}')
        changing.reload(dry_run=True)
        assert "reloaded" not in caplog.text
        changing.reload()
        assert caplog.messages[-1] == "reloaded: m3 added"
        changing.reload()
        assert caplog.messages[-1] == "reloaded: nothing has changed"


def test_a_wrong_profile_changes_nothing_and_is_named(changing: Changing) -> None:
    changing.write("m3", 'id = "m3"\n{server}')
    changing.write("m1", 'id = "m1"\ncolour = "red"\n{server}')
    with pytest.raises(DeckError, match=r"nothing is reloaded: .*m1\.toml: colour: unknown key"):
        changing.reload()
    assert changing.asked("m3") == 404
    assert changing.asked("m1") == 200


def test_a_dry_run_only_tells(changing: Changing) -> None:
    changing.write("m3", 'id = "m3"\n{server}')
    assert changing.reload(dry_run=True)["added"] == ["m3"]
    assert changing.asked("m3") == 404


def test_new_defaults_apply_at_once_and_the_server_goes_on(changing: Changing) -> None:
    assert changing.asked("m1") == 200
    server = changing.running.deck.board.server("m1")
    changing.write("m1", 'id = "m1"\n{server}stall_timeout = "7s"\n[force]\ntemperature = 0.25\n')
    assert changing.reload() == {"added": [], "removed": [], "relaunched": [], "changed": ["m1"]}
    assert changing.asked("m1") == 200
    assert changing.running.upstream()[-1]["temperature"] == 0.25
    assert changing.running.deck.board.server("m1") is server
    assert server is not None
    assert server.profile.server.stall_timeout == 7


def test_a_running_server_may_be_silent_as_long_as_the_new_profile_says(tmp_path: Path) -> None:
    gate = asyncio.Event()

    def reply(request: Received) -> Reply:
        return say("Hello") if not running.fake.chats[1:] else Reply(steps=say("Hello").steps, before_headers=gate)

    with app(tmp_path, reply) as running:
        changing = Changing(running, tmp_path / "profiles")
        changing.reload()
        assert changing.asked("m1") == 200
        changing.write("m1", 'id = "m1"\n{server}stall_timeout = "200ms"\n')
        assert changing.reload()["changed"] == ["m1"]

        async def silent() -> int:
            async with asyncio.timeout(10):
                headers = {"authorization": f"Bearer {TOKEN}"}
                return (await running.client.post("/v1/chat/completions", json=BODY, headers=headers)).status_code

        assert running.runner.run(silent()) == 504


def test_another_launch_replaces_the_server_when_it_is_free(
    changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changing.asked("m1") == 200
    server = changing.running.deck.board.server("m1")
    monkeypatch.setenv("KEY", "k")
    changing.write("m1", 'id = "m1"\n{server}api_key_env = "KEY"\n')
    assert changing.reload()["relaunched"] == ["m1"]
    assert changing.asked("m1") == 200
    assert changing.running.deck.board.server("m1") is not server


def test_more_at_a_time_elsewhere_holds_at_once(changing: Changing) -> None:
    assert changing.asked("m1") == 200
    server = changing.running.deck.board.server("m1")
    changing.write("m1", 'id = "m1"\n{server}parallel = 3\n')
    assert changing.reload()["changed"] == ["m1"]
    assert changing.running.deck.board.slots("m1") == 3
    assert changing.asked("m1") == 200
    assert changing.running.deck.board.server("m1") is server


def test_another_url_is_used_while_an_answer_of_the_one_before_runs(tmp_path: Path) -> None:
    gates: list[asyncio.Event] = []

    def reply(request: Received) -> Reply:
        gates.append(asyncio.Event())
        return Reply(steps=say("old").steps, before_headers=gates[-1])

    with app(tmp_path, reply) as running:

        async def play() -> tuple[str, str]:
            body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
            headers = {"authorization": f"Bearer {TOKEN}"}

            async def ask() -> str:
                answer = await running.client.post("/v1/chat/completions", json=body, headers=headers)
                return str(answer.json()["choices"][0]["message"]["content"])

            async with FakeLlama(lambda request: say("new")) as other, asyncio.timeout(10):
                first = asyncio.create_task(ask())
                while not gates:
                    await asyncio.sleep(0)
                (tmp_path / "profiles" / "m1.toml").write_text(f'id = "m1"\n[server]\nurl = "{other.url}"\n')
                assert running.deck.reload().changed == ("m1",)
                second = await ask()
                gates[0].set()
                return await first, second

        assert running.runner.run(play()) == ("old", "new")


def test_an_answer_goes_on_over_a_reload_that_removes_its_model(tmp_path: Path) -> None:
    directory, gates = tmp_path / "profiles", []

    def reply(request: Received) -> Reply:
        gates.append(asyncio.Event())
        return Reply(steps=say("Hello").steps, before_headers=gates[-1])

    with app(tmp_path, reply) as running:

        async def play() -> tuple[int, int]:
            body = {"model": "m2", "messages": [{"role": "user", "content": "hi"}]}
            headers = {"authorization": f"Bearer {TOKEN}"}
            first = asyncio.create_task(running.client.post("/v1/chat/completions", json=body, headers=headers))
            async with asyncio.timeout(10):
                while not gates:
                    await asyncio.sleep(0)
            (directory / "m2.toml").unlink()
            assert running.deck.reload().removed == ("m2",)
            second = await running.client.post("/v1/chat/completions", json=body, headers=headers)
            gates[0].set()
            return (await first).status_code, second.status_code

        assert running.runner.run(play()) == (200, 404)


def test_counts_of_a_new_model_are_its_own(changing: Changing) -> None:
    changing.write("m3", 'id = "m3"\n{server}')
    changing.reload()
    changing.asked("m3")
    exposition = changing.running.deck.metrics.exposition()[0].decode()
    assert 'deck_tokens_total{direction="prompt",model="m3"}' in exposition
    assert 'deck_server_state{model="m3",state="ready"} 1.0' in exposition


def test_the_route_reloads_for_operators_and_tells_what_is_wrong(changing: Changing) -> None:
    send = changing.running.send
    changing.write("m3", 'id = "m3"\n{server}')
    assert send("POST", "/deck/reload?dry_run").json()["added"] == ["m3"]
    assert changing.asked("m3") == 404
    assert send("POST", "/deck/reload").json() == {
        "dry_run": False,
        "added": ["m3"],
        "removed": [],
        "relaunched": [],
        "changed": [],
    }
    assert changing.asked("m3") == 200
    changing.write("m3", "id = 5")
    assert "nothing is reloaded" in error_of(send("POST", "/deck/reload"), 400)["message"]
    _, plain = changing.running.tokens.create("plain")
    error_of(send("POST", "/deck/reload", token=plain), 403)


def several(*urls: str, **server: Any) -> Profile:
    return Profile.model_validate({"id": "a", "server": {"urls": list(urls), **server}})


def test_servers_elsewhere_come_and_go_without_a_relaunch() -> None:
    old = several("http://a:1", "http://b:1", parallel=2)
    assert changed(old, several("http://b:1", "http://c:1", parallel=4)).changed == ("a",)
    assert changed(old, several("http://a:1", "http://b:1", parallel=2, health_interval="9s")).changed == ("a",)
    assert changed(old, several("http://a:1", parallel=2, api_key_env="KEY")).relaunched == ("a",)
    one, other = (
        Profile.model_validate({"id": "a", "server": {"url": f"http://{host}:1", "parallel": 2}}) for host in "ab"
    )
    assert changed(old, one).changed == ("a",)
    assert changed(one, old).changed == ("a",)
    assert changed(one, other).changed == ("a",)
    here = Profile.model_validate({"id": "a", "server": {"model": "/a.gguf", "parallel": 2}})
    assert changed(one, here).relaunched == changed(here, one).relaunched == ("a",)
