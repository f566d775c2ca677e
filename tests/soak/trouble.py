"""What is done to a Deck while it serves: servers killed, profiles edited, models loaded and unloaded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable

import httpx
from soak.house import House, admin

_SIZES = (2048, 4096, 8192)


class Trouble:
    """Makes trouble by a seed, and counts it; `wrong` is what an operator's route should not have said."""

    def __init__(self, house: House, dice: random.Random) -> None:
        self._house = house
        self._dice = dice
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def go_on(self, is_over: Callable[[], bool], every: float) -> None:
        """Do something every so many seconds until it is over."""
        deeds = (self.kill, self.relaunch, self.retune, self.spoil, self.load, self.unload, self.unload_now, self.look)
        async with admin(self._house.deck) as client:
            while not is_over():
                await asyncio.sleep(every)
                await self._dice.choice(deeds)(client)

    async def kill(self, client: httpx.AsyncClient) -> None:
        """Kill a server, and have it forgiven, or a row of such would end in a long backoff."""
        engines = self._house.engines()
        if engines:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._dice.choice(engines), signal.SIGKILL)
            self.done["servers killed"] += 1
        for model in (await client.get("/v1/stats")).json()["quarantined"]:
            if model != "never":
                await self._load(client, model)

    async def relaunch(self, client: httpx.AsyncClient) -> None:
        """Change the command line of a model."""
        name = self._dice.choice(sorted(self._house.profiles))
        lines = [item for item in self._house.profiles[name].splitlines() if not item.startswith("ctx_size")]
        text = "\n".join([*lines, f"ctx_size = {self._dice.choice(_SIZES)}"])
        await self._edit(client, name, text, 200)
        self.done["reloads that relaunch a model"] += 1

    async def retune(self, client: httpx.AsyncClient) -> None:
        """Change what needs no new server."""
        name = self._dice.choice(sorted(self._house.profiles))
        head, _, rest = self._house.profiles[name].partition("\n")
        text = f'{head}\ndescription = "{self._dice.random()}"\n{rest}'
        await self._edit(client, name, text, 200, keep=False)
        self.done["reloads that relaunch nothing"] += 1

    async def spoil(self, client: httpx.AsyncClient) -> None:
        """Write a profile that is wrong, which must change nothing, and put it right."""
        name = self._dice.choice(sorted(self._house.profiles))
        text = self._house.profiles[name]
        await self._edit(client, name, f"{text}\ncolour = 'red'\n", 400, keep=False)
        await self._edit(client, name, text, 200)
        self.done["reloads that are refused"] += 1

    async def load(self, client: httpx.AsyncClient) -> None:
        """Load a model as an operator does."""
        await self._load(client, self._dice.choice(sorted(self._house.profiles)))
        self.done["loads"] += 1

    async def unload(self, client: httpx.AsyncClient) -> None:
        """Unload a model when it is free."""
        await self._post(client, f"/deck/servers/{self._dice.choice(sorted(self._house.profiles))}/unload", 200)
        self.done["unloads"] += 1

    async def unload_now(self, client: httpx.AsyncClient) -> None:
        """Unload a model whoever uses it."""
        await self._post(client, f"/deck/servers/{self._dice.choice(sorted(self._house.profiles))}/unload?now", 200)
        self.done["unloads at once"] += 1

    async def look(self, client: httpx.AsyncClient) -> None:
        """Read what can be read."""
        for path in ("/v1/models", "/v1/capabilities", "/v1/stats", "/metrics", "/deck/servers", "/health"):
            answer = await client.get(path)
            if answer.status_code != 200:
                self.wrong.append(f"GET {path}: {answer.status_code} {answer.text[:200]}")
        self.done["looks at every route"] += 1

    async def _load(self, client: httpx.AsyncClient, model: str) -> None:
        # 429: the queue is full; 503: it does not start, was unloaded, or others leave no room for too long.
        await self._post(client, f"/deck/servers/{model}/load", 200, 429, 503)

    async def _edit(self, client: httpx.AsyncClient, name: str, text: str, status: int, *, keep: bool = True) -> None:
        path = self._house.directory / f"{name}.toml"
        fresh = path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
        if keep:
            self._house.profiles[name] = text
        await self._post(client, "/deck/reload", status)

    async def _post(self, client: httpx.AsyncClient, path: str, *statuses: int) -> None:
        try:
            answer = await client.post(path)
        except httpx.HTTPError as exc:
            self.wrong.append(f"POST {path}: {exc!r}")
            return
        if answer.status_code not in statuses:
            self.wrong.append(f"POST {path}: {answer.status_code} {answer.text[:200]}")
