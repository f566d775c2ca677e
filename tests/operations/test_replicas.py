"""An operation on several servers: it goes where it can be done."""

from __future__ import annotations

from pathlib import Path

import pytest
from app_support import app
from faults.test_replicas import free
from operations_support import EMBEDDED

from deck.testing.fake_llama import FakeLlama, Reply, refuse


@pytest.mark.parametrize("status", [429, 503])
def test_another_server_is_asked_where_the_first_is_busy(tmp_path: Path, status: int) -> None:
    ports = [free("127.0.0.1") for _ in range(2)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    profile = f'id = "e"\nkind = "embedding"\n[server]\nurls = ["{urls[0]}", "{urls[1]}"]\nhealth_interval = "60s"\n'
    busy = refuse(status, "come back later", "unavailable_error")
    with app(tmp_path, profiles={"e": profile}) as running:
        route = "/v1/embeddings"
        fakes = [FakeLlama((), port=ports[0], routes={route: EMBEDDED})]
        fakes.append(FakeLlama((), port=ports[1], routes={route: busy}))
        for fake in fakes:
            running.runner.run(fake.start())
        try:
            found = [running.send("POST", route, json={"model": "e", "input": f"{n}"}).status_code for n in range(6)]
        finally:
            for fake in fakes:
                running.runner.run(fake.stop())
    assert found == [200] * 6
    assert fakes[1].of(route), "the busy one was never chosen"


def test_one_whose_events_end_early_is_left_alone(tmp_path: Path) -> None:
    ports = [free("127.0.0.1") for _ in range(2)]
    urls = ", ".join(f'"http://127.0.0.1:{port}"' for port in ports)
    profile = f'id = "i"\nkind = "image"\n[server]\nurls = [{urls}]\nhealth_interval = "60s"\n'
    route = "/v1/images/generations"
    whole = Reply(steps=[b'data: {"type":"image_generation.completed"}\n\n'])
    early = Reply(steps=[b'data: {"type":"image_generation.partial_image"}\n\n'])
    with app(tmp_path, profiles={"i": profile}) as running:
        fakes = [
            FakeLlama((), port=port, routes={route: reply}) for port, reply in zip(ports, (whole, early), strict=True)
        ]
        for fake in fakes:
            running.runner.run(fake.start())
        try:
            bodies = [{"model": "i", "prompt": f"{number}", "stream": True} for number in range(16)]
            found = ["event: error" in running.send("POST", route, json=body).text for body in bodies]
        finally:
            for fake in fakes:
                running.runner.run(fake.stop())
    assert 1 <= found.count(True) <= 3
    assert len(fakes[1].of(route)) == found.count(True)
