"""Renders conversations by the chat templates that llama.cpp ships, in the real engine, before and after a family.

`python tests/families/templates.py DIRECTORY REPORT` writes what it found as JSON: `docs/families.md` shows it.
Takes a minute or two; it is no test of the suite, since the templates are not part of this repository.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_support import Engine, running

from deck.canon.request import ChatRequest, Reasoning, ReasoningSetting, Text, ToolResult
from deck.config import Config
from deck.contracts import Facts, Family
from deck.kit import StandardFamily
from deck.normalize.history import repair_history
from deck.normalize.report import Report
from deck.plugins import Plugins
from deck.servers.probe import facts_of
from deck.testing.family import conversations
from deck.upstream.encode import encode


def main(directory: Path, report: Path) -> None:
    families = Plugins(Config()).families
    found = {file.stem: _judged(file, families) for file in sorted(directory.glob("*.jinja"))}
    report.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(found)} templates, {sum(bool(item['after']) for item in found.values())} still raise")


def _judged(file: Path, families: Any) -> dict[str, Any]:
    try:
        with running("--chat-template-file", str(file), "-c", "4096", "-np", "1") as engine:
            return _rendered(engine, families)
    except (AssertionError, OSError) as exc:
        return {"family": "", "before": {}, "after": {"loading": str(exc).splitlines()[0][:160]}, "hidden": []}


def _rendered(engine: Engine, families: Any) -> dict[str, Any]:
    facts = facts_of(engine.client.get("/props").json(), {})
    family = _family_of(families, facts)
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    hidden: list[str] = []
    for name, request in _asked():
        _, fault = _prompt(engine, request)
        if fault:
            before[name] = fault
        adapted = family.adapt(repair_history(request, Report()), facts, report := Report())
        prompt, fault = _prompt(engine, adapted)
        if fault:
            after[name] = fault
        elif lost := _lost(adapted, prompt):
            said = any("shows no text beside calls" in note.detail for note in report.notes)
            hidden.append(f"{name}: {lost}" + (" (said)" if said else ""))
    switched = {on: _prompt(engine, family.adapt(_thinking(on), facts, Report()))[0] for on in (True, False)}
    return {
        "family": family.name,
        "before": before,
        "after": after,
        "hidden": hidden,
        "told": facts.template_caps.get("supports_tools") is False,
        "switches": switched[True] != switched[False],
    }


def _family_of(families: Any, facts: Facts) -> Family:
    found = [item for item in families.values() if isinstance(item, StandardFamily) and item.accepts(facts)]
    assert len(found) < 2, [item.name for item in found]
    generic: Family = families["generic"]
    return found[0] if found else generic


def _asked() -> Iterator[tuple[str, ChatRequest]]:
    for name, request in conversations().items():
        if name != "prefill":
            yield name, request
    yield "without tools", replace(conversations()["system first"], tools=())


def _thinking(enabled: bool) -> ChatRequest:
    return replace(conversations()["a question"], tools=(), reasoning=ReasoningSetting(enabled=enabled))


def _prompt(engine: Engine, request: ChatRequest) -> tuple[str, str]:
    """Return the prompt, and why there is none."""
    answer = engine.client.post("/apply-template", json=encode(request, context=4096))
    if answer.status_code == 200:
        return answer.json()["prompt"], ""
    message = str(answer.json().get("error", {}).get("message", answer.status_code))
    return "", message.strip().splitlines()[-1][:160]


def _lost(request: ChatRequest, prompt: str) -> str:
    """Return what of a conversation the prompt does not show: texts, and what was called."""
    for message in request.messages:
        for part in message.parts:
            inner = part.parts if isinstance(part, ToolResult) else (part,)
            for item in inner:
                if isinstance(item, Text) and item.text.strip() and item.text.strip() not in prompt:
                    return f"{message.role} text"
                if isinstance(item, Reasoning) and message is request.messages[-1] and item.text not in prompt:
                    return "thoughts"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
