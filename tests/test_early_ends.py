"""A server elsewhere whose answers end early, though in order: it counts as one that fails."""

from __future__ import annotations

from pathlib import Path

from app_support import BODY, app
from faults.test_replicas import free

from deck.contracts import ReplicaState
from deck.errors import DeckError, ErrorKind, without_paths
from deck.servers.backend import Fate, fate_of
from deck.testing.fake_llama import FakeLlama, Reply
from deck.testing.frames import content, role
from deck.upstream.failures import MidAnswer


def test_it_is_left_alone_after_some(tmp_path: Path) -> None:
    ports = [free("127.0.0.1") for _ in range(2)]
    urls = ", ".join(f'"http://127.0.0.1:{port}"' for port in ports)
    profile = f'id = "far"\n[server]\nurls = [{urls}]\nhealth_interval = "60s"\n'
    with app(tmp_path, profiles={"far": profile}) as running:
        fakes = [FakeLlama((), port=ports[0]), FakeLlama([Reply(steps=[role(), content("a")])], port=ports[1])]
        for fake in fakes:
            running.runner.run(fake.start())
        try:
            bodies = [{**BODY, "model": "far", "messages": [{"role": "user", "content": f"{n}"}]} for n in range(24)]
            found = [running.chat(json=body).status_code for body in bodies]
            states = [item.state for item in running.deck.board.replicas()["far"]]
        finally:
            for fake in fakes:
                running.runner.run(fake.stop())
    assert set(found) == {200, 502}
    assert found.count(502) <= 3
    assert states == [ReplicaState.UP, ReplicaState.DOWN]


def test_what_a_client_is_not_told_says_the_same_of_the_server() -> None:
    error = DeckError(ErrorKind.UPSTREAM, "broke off: no /srv/secret/a.gguf")
    error.__cause__ = MidAnswer()
    shown = without_paths(error)
    assert shown.message == "broke off: no …/a.gguf"
    assert fate_of(shown) is Fate.BROKE
