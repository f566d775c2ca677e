"""Files of profiles that change under a running Deck."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from app_support import app

from deck.watching import Print, Rest, fingerprint, watch

A: Print = frozenset({("a.toml", 1, 1)})
B: Print = frozenset({("a.toml", 2, 2)})
C: Print = frozenset({("a.toml", 3, 3)})


@pytest.mark.parametrize(
    ("looks", "acts"),
    [
        ([A, A, A], []),
        ([A, B, B, B], [2]),
        ([B, C, B, C, C], [4]),  # while it changes nothing is done
        ([B, A, A], []),  # it is as it was
        ([B, B, A, A], [1, 3]),
        ([B, B, C, C, C], [1, 3]),
    ],
)
def test_what_has_come_to_rest_is_acted_on_once(looks: list[Print], acts: list[int]) -> None:
    rest = Rest(A)
    assert [number for number, look in enumerate(looks) if rest.has_settled(look)] == acts


def test_names_sizes_and_times_tell(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    prints = [fingerprint([tmp_path, tmp_path / "nowhere"])]
    changes: list[Callable[[], object]] = [
        lambda: file.write_text("x"),
        lambda: file.write_text("xy"),
        lambda: os.utime(file, (5, 5)),
        lambda: file.rename(tmp_path / "b.toml"),
        lambda: (tmp_path / "b.toml").unlink(),
    ]
    for change in changes:
        change()
        prints.append(fingerprint([tmp_path, tmp_path / "nowhere"]))
    assert prints[0] == prints[-1] == frozenset()
    assert len(set(prints)) == len(prints) - 1
    (tmp_path / "a.toml~").touch()
    (tmp_path / ".a.toml").touch()
    (tmp_path / ".#a.toml").symlink_to("somebody@somewhere.1:2")
    assert fingerprint([tmp_path]) == frozenset()


def test_it_is_watched_until_it_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        changed = asyncio.Event()
        task = asyncio.create_task(watch([tmp_path], frozenset(), 0.005, changed.set))
        (tmp_path / "a.toml").write_text("x")
        async with asyncio.timeout(10):
            await changed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_changed_file_is_in_force_soon_and_a_wrong_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with app(tmp_path, watch_profiles="20ms") as running:
        directory = tmp_path / "profiles"

        def models() -> set[str]:
            return {item["id"] for item in running.send("GET", "/v1/models").json()["data"]}

        def fault() -> str | None:
            said: str | None = running.send("GET", "/v1/stats").json()["profiles_fault"]
            assert running.send("GET", "/deck/servers").json()["profiles_fault"] == said
            return said

        def until(claim: Callable[[], object]) -> None:
            async def turns() -> None:
                await asyncio.sleep(0.01)

            for _ in range(1000):
                if claim():
                    return
                running.runner.run(turns())
            raise AssertionError("it did not come")

        assert fault() is None
        (directory / "m3.toml").write_text(f'id = "m3"\n[server]\nurl = "{running.fake.url}"\n')
        until(lambda: "m3" in models())
        (directory / "m1.toml").write_text("id = 7")
        until(lambda: fault() is not None)
        assert "m1.toml" in (fault() or "")
        for _ in range(20):
            models()
        assert {"m1", "m2", "m3"} <= models()
        assert caplog.text.count("nothing is reloaded") == 1
        (directory / "m1.toml").unlink()
        until(lambda: "m1" not in models())
        assert fault() is None


def test_it_is_off_by_default(tmp_path: Path) -> None:
    with app(tmp_path) as running:
        assert running.deck._watch is None
