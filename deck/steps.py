"""Deck's own steps of normalisation: defaults, forced values, dropped fields, limits; each change leaves a note.

Precedence, later wins: family defaults < profile `[defaults]` < client < profile `[force]`; then `drop`, then
`[limits]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from deck.canon.request import ChatRequest, TextRequest
from deck.contracts import Facts
from deck.normalize.report import Report
from deck.profile import Profile

# Fields that only shape a sampler, and the one that switches it on (llama.cpp, tools/server/README.md).
_SWITCHES = {
    "mirostat_tau": "mirostat",
    "mirostat_eta": "mirostat",
    "dynatemp_exponent": "dynatemp_range",
    "xtc_threshold": "xtc_probability",
    "dry_base": "dry_multiplier",
    "dry_allowed_length": "dry_multiplier",
    "dry_penalty_last_n": "dry_multiplier",
    "dry_sequence_breakers": "dry_multiplier",
}
# Which sampler of `samplers` reads a field (llama.cpp, common/sampling.cpp).
_PENALTIES = ("repeat_penalty", "repeat_last_n", "frequency_penalty", "presence_penalty")
_SAMPLER_OF = {
    **dict.fromkeys(_PENALTIES, "penalties"),
    **{name: name for name in ("top_k", "top_p", "min_p", "top_n_sigma")},
    "typical_p": "typ_p",
    **dict.fromkeys(("xtc_probability", "xtc_threshold"), "xtc"),
    **dict.fromkeys(("dry_multiplier", *(name for name in _SWITCHES if name.startswith("dry_"))), "dry"),
    "dynatemp_range": "temperature",
    "dynatemp_exponent": "temperature",
    "adaptive_target": "adaptive_p",
    "adaptive_decay": "adaptive_p",
}
_SPELLINGS = {"typical_p": "typ_p"}
SWITCHED = frozenset(_SWITCHES) | {"adaptive_target", "adaptive_decay"}
# What may keep samplers from running, whoever set it.
RULING = frozenset({"mirostat", "samplers", "repeat_last_n"})
_NO_PATHS: Mapping[str, str] = {}
_Request = TypeVar("_Request", ChatRequest, TextRequest)


def changes_values(profile: Profile) -> bool:
    """Tell whether a profile has values of its own for what clients send."""
    return bool(profile.defaults or profile.force or profile.drop or profile.limits)


def apply_profile(
    request: _Request,
    profile: Profile,
    family_defaults: Mapping[str, Any],
    report: Report,
    paths: Mapping[str, str] = _NO_PATHS,
) -> _Request:
    """Return the request as the profile shapes it; `paths` are the client's own, for the notes."""
    if not family_defaults and not changes_values(profile):
        return request
    sampling = {**family_defaults, **profile.defaults, **request.sampling}
    for name, value in profile.force.items():
        if name in request.sampling and request.sampling[name] != value:
            shown = f"{paths.get(name, name)}={_shown(request.sampling[name])}>{value}"
            report.changed(paths.get(name, name), "the profile forces a value", shown=shown, field=name)
        sampling[name] = value
    for name in profile.drop:
        if sampling.pop(name, None) is not None and name in request.sampling:
            report.ignored(paths.get(name, name), "the profile drops it", field=name)
    for name, limit in profile.limits.items():
        _limit(sampling, name, limit, report, paths.get(name, name))
    return replace(request, sampling=sampling)


def note_idle(
    request: _Request, asked: Mapping[str, Any], facts: Facts, report: Report, paths: Mapping[str, str]
) -> None:
    """Report what the client set of samplers that are off.

    Args:
        request: as it will be sent.
        asked: what the client itself set.
        facts: of the server, whose defaults count.
        report: gets the notes.
        paths: the client's own.
    """
    for name in asked:
        why = _why_idle(name, request.sampling, facts.sampling)
        if why is not None:
            report.ignored(paths.get(name, name), why, field=name)


def _why_idle(name: str, sent: Mapping[str, Any], server: Mapping[str, Any]) -> str | None:
    """Return why a setting has no effect, None = it may have one."""
    switch, sampler = _SWITCHES.get(name), _SAMPLER_OF.get(name)
    if switch is not None and not sent.get(switch, server.get(switch)):
        return f"without {switch} this sampler is off"
    if sampler is not None or name == "samplers":
        if sent.get("mirostat", server.get("mirostat")):
            return "mirostat takes the place of all samplers but temperature"
        listed = sent.get("samplers", server.get("samplers"))
        if sampler is not None and listed is not None:
            if sampler not in [_SPELLINGS.get(item, item) for item in listed]:
                return f"samplers leaves {sampler} out"
        elif sampler == "adaptive_p":  # llama.cpp's own list leaves it out
            return "it runs only where samplers names adaptive_p"
    if name in _PENALTIES and sent.get("repeat_last_n", server.get("repeat_last_n")) == 0:
        return "repeat_last_n is 0, so nothing is penalized"
    return None


def _limit(sampling: dict[str, Any], name: str, limit: float, report: Report, path: str) -> None:
    value = sampling.get(name)
    if value is None and name == "max_tokens":
        sampling[name] = limit
        report.changed(path, "the profile limits the answer's length", shown=f"{path}>{limit}", field=name)
    elif isinstance(value, int | float) and not isinstance(value, bool) and value > limit:
        sampling[name] = limit
        report.changed(path, "clamped to the profile's limit", shown=f"{path}={value}>{limit}", field=name)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, int | float) else "…"
