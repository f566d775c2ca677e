"""A profile's own values: who wins, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deck.canon.request import ChatRequest
from deck.normalize.report import Report
from deck.profile import Profile, load_profile
from deck.steps import apply_profile


def profile(tmp_path: Path, text: str) -> Profile:
    path = tmp_path / "p.toml"
    path.write_text(f'id = "p"\n{text}\n[server]\nurl = "http://127.0.0.1:1"\n', encoding="utf-8")
    return load_profile(path)


def shaped(of: Profile, family: dict[str, Any] | None = None, **sampling: Any) -> tuple[dict[str, Any], Report]:
    report = Report()
    request = ChatRequest(model="p", messages=(), sampling=sampling)
    before = of.model_dump()
    after = apply_profile(request, of, family or {}, report)
    assert of.model_dump() == before
    assert request.sampling == sampling
    return dict(after.sampling), report


def test_later_sources_win(tmp_path: Path) -> None:
    of = profile(tmp_path, "[defaults]\ntemperature = 0.5\ntop_k = 10\n[force]\ntop_p = 0.9")
    got, report = shaped(of, {"temperature": 0.1, "min_p": 0.2}, top_k=20, top_p=0.3)
    assert got == {"temperature": 0.5, "min_p": 0.2, "top_k": 20, "top_p": 0.9}
    assert report.headers() == [("X-Athena-Compatibility-Changed", "top_p=0.3>0.9")]


def test_dropped_fields_are_reported(tmp_path: Path) -> None:
    got, report = shaped(profile(tmp_path, 'drop = ["seed"]'), seed=1)
    assert got == {}
    assert report.headers() == [("X-Athena-Compatibility-Ignored", "seed")]


def test_limits_clamp_and_say_so(tmp_path: Path) -> None:
    of = profile(tmp_path, "[limits]\ntemperature = 2\nmax_tokens = 100")
    got, report = shaped(of, temperature=2.5, max_tokens=500)
    assert got == {"temperature": 2, "max_tokens": 100}
    assert report.headers() == [("X-Athena-Compatibility-Changed", "max_tokens=500>100, temperature=2.5>2")]


def test_an_answer_without_a_budget_gets_the_limit(tmp_path: Path) -> None:
    got, _ = shaped(profile(tmp_path, "[limits]\nmax_tokens = 100"))
    assert got == {"max_tokens": 100}
