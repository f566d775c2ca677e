"""A probe of a fake llama-server: what it is asked, and what comes of its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deck.config import Config
from deck.plugins import Plugins
from deck.probe import Finding, Measure, probe
from deck.probe_measures import MEASURES
from deck.profile import Profile, load_profile
from deck.testing.fake_llama import FakeLlama, Received, Reply
from deck.testing.frames import content, done, finish, reasoning, role, tool, usage

TEMPLATE = "/apply-template"


def saying(*frames: bytes, reason: str = "stop", tokens: int = 5) -> Reply:
    return Reply(steps=(role(), *frames, finish(reason), usage(10, tokens), done()))


def calling(*cities: str, reason: str = "tool_calls") -> Reply:
    calls = (
        tool(number, f"c{number}", "get_weather", json.dumps({"city": city})) for number, city in enumerate(cities)
    )
    return saying(*calls, reason=reason)


def question(body: Mapping[str, Any]) -> str:
    """Return the text of the last turn."""
    last = body["messages"][-1]["content"]
    return last if isinstance(last, str) else " ".join(part.get("text", "") for part in last)


def able(request: Received) -> Reply:
    """Answer as a model that can do everything."""
    body = request.json()
    text = question(body)
    if "Rome?" in text:
        return calling("Paris", "Rome")
    if text == "22 C":
        return saying(content("It is 22 C."))
    if "tools" in body:
        return calling("Paris")
    if "response_format" in body:
        return saying(content('{"name": "Ana", "age": 31,'), content(' "city": "Rome"}'))
    if body.get("chat_template_kwargs", {}).get("enable_thinking"):
        return saying(reasoning("Hm."), content("Paris"))
    return saying(content("a "), content("b"))


def whole(request: Received) -> dict[str, Any]:
    """Be a template that shows everything it is given."""
    return {"prompt": json.dumps(request.json())}


@dataclass
class Probed:
    """What was found by name, and what the server was sent."""

    findings: dict[str, Finding]
    fake: FakeLlama
    begun: list[str] = field(default_factory=list)

    def value(self, name: str) -> Any:
        return self.findings[name].value

    def remark(self, name: str) -> str:
        return self.findings[name].remark

    def prompts(self) -> list[dict[str, Any]]:
        return [item.json() for item in self.fake.requests if item.path == TEMPLATE]


def profile_at(tmp: Path, url: str, more: str = "") -> Profile:
    path = tmp / "m.toml"
    path.write_text(f'id = "m"\n{more}\n[server]\nurl = "{url}"\n', encoding="utf-8")
    return load_profile(path, {})


def only(*names: str) -> tuple[Measure, ...]:
    return tuple(item for item in MEASURES if item.name in names)


def probed(
    tmp: Path,
    script: Callable[[Received], Reply] = able,
    *names: str,
    limit: float = 20.0,
    more: str = "",
    template: Callable[[Received], Any] | None = whole,
    **fake: Any,
) -> Probed:
    """Probe a fake server for the named measures, or for all."""

    async def work() -> Probed:
        routes = {**({TEMPLATE: template} if template else {}), **fake.pop("routes", {})}
        async with FakeLlama(script, routes=routes, **fake) as server:
            config = Config(state=tmp / "state")
            found = Probed({}, server)
            measures = only(*names) if names else MEASURES
            _, findings = await probe(
                profile_at(tmp, server.url, more),
                config,
                Plugins(config),
                measures,
                limit=limit,
                on_begin=found.begun.append,
                on_end=lambda finding: None,
            )
            found.findings = {item.measure.name: item for item in findings}
            return found

    return asyncio.run(work())
