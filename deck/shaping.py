"""A client's canonical request in the form in which it is sent: steps, history, family, checks, encoding.

Everything here is pure: it needs the facts of a server and touches none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from deck import kit
from deck.answer_tool import AnswerText, with_answer_tool
from deck.canon.events import Event
from deck.canon.request import UNSET_REASONING, Audio, ChatRequest, Image, Output, Request, TextRequest, has_kind
from deck.contracts import NEEDS_NOTHING, Facts, Family, Filter, Needs
from deck.errors import DeckError, ErrorKind, invalid
from deck.exchange import Exchange, Shaped
from deck.normalize.history import repair_history
from deck.normalize.reasoning import with_setting
from deck.normalize.report import Report
from deck.normalize.tools import add_stops, note_schemas
from deck.plugins import Plugins
from deck.profile import Profile
from deck.steps import RULING, SWITCHED, apply_profile, changes_values, note_idle
from deck.upstream.client import CHAT, TEXT
from deck.upstream.encode import encode, encode_text

_MEDIA: Sequence[tuple[type[Image] | type[Audio], Literal["vision", "audio"], str]] = (
    (Image, "vision", "images"),
    (Audio, "audio", "audio"),
)
_NO_PREFILL = "--no-prefill-assistant"
_Result = TypeVar("_Result")
_Asked = TypeVar("_Asked", ChatRequest, TextRequest)


class Shaper:
    """Turns parsed requests into upstream bodies, by the plugins' steps and families."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._families: dict[str, _Chosen] = {}

    def forget(self) -> None:
        """Choose every model's family anew: its profile may have changed."""
        self._families.clear()

    def shape(self, exchange: Exchange, facts: Facts) -> Shaped:
        """Apply the profile's steps, the plugins' and the family's, and encode; each change leaves a note."""
        assert exchange.parsed is not None
        assert exchange.profile is not None
        profile, report, request = exchange.profile, exchange.report, exchange.parsed.request
        if isinstance(request, TextRequest):
            return self._shape_text(exchange, request, facts)
        if request.reasoning is not UNSET_REASONING:
            request = _as_it_thinks(request, profile, report)
        chosen = self._chosen(profile, facts)
        family = chosen.family
        if chosen.shapes:
            request = apply_profile(request, profile, chosen.defaults, report, exchange.parsed.paths)
        if self._plugins.steps:
            request = self._step(request, profile, report)
        # What most requests have no use for is not called for each: this is run for all.
        if request.extra or request.messages is not exchange.texts:
            request = repair_history(request, report, continues=_NO_PREFILL not in profile.server.args)
        request = add_stops(request, chosen.stops) if chosen.stops else request
        output, answer_tool = request.output, ""
        if output is not None or request.tools:
            note_schemas(request, report)
            request, answer_tool = with_answer_tool(request, facts, report)
        request = call_plugin(family.name, family.adapt, request, facts, report)
        _check_shaped(request, exchange, facts)
        if output is not None:
            _check_end(output, request.sampling, exchange.parsed.paths)
        asked = exchange.parsed.request.sampling
        is_ruled = facts.sampling.get("mirostat") or not RULING.isdisjoint(request.sampling)
        if is_ruled or not SWITCHED.isdisjoint(asked):
            note_idle(request, asked, facts, report, exchange.parsed.paths)
        body = encode(request, context=facts.context or profile.server.ctx_size)
        if answer_tool:
            request = replace(request, output=output)  # which the answer is held against
        if exchange.parsed.needs is not NEEDS_NOTHING:
            body |= _asked(exchange.parsed.needs)
        return Shaped(request, family, chosen.why, CHAT, body, answer_tool)

    def _shape_text(self, exchange: Exchange, request: TextRequest, facts: Facts) -> Shaped:
        assert exchange.parsed is not None
        assert exchange.profile is not None
        profile, report = exchange.profile, exchange.report
        request = apply_profile(request, profile, {}, report, exchange.parsed.paths)
        request = self._step(request, profile, report)
        note_schemas(request, report)
        _check_biases(request, facts, exchange.parsed.paths)
        if request.output is not None:
            _check_end(request.output, request.sampling, exchange.parsed.paths)
        note_idle(request, exchange.parsed.request.sampling, facts, report, exchange.parsed.paths)
        body = encode_text(request, context=facts.context or profile.server.ctx_size)
        return Shaped(request, None, "a raw prompt has no template", TEXT, body | _asked(exchange.parsed.needs))

    def _step(self, request: _Asked, profile: Profile, report: Report) -> _Asked:
        for step in self._plugins.steps:
            changed = call_plugin(step.name, step.apply, request, profile, report)
            if type(changed) is not type(request):
                was, became = type(request).__name__, type(changed).__name__
                raise DeckError(ErrorKind.INTERNAL, f"the plugin {step.name!r} made a {became} of a {was}")
            request = changed
        return request

    def _chosen(self, profile: Profile, facts: Facts) -> _Chosen:
        """Return the model's family, chosen and asked once for each run of its server under one profile.

        Exchanges of before a reload may still be shaped by the profile that they were prepared under.
        """
        known = self._families.get(profile.id)
        if known is None or known.facts is not facts or known.profile is not profile:
            family, why = self._plugins.family(profile, facts)
            defaults = call_plugin(family.name, family.defaults, facts)
            stops = call_plugin(family.name, family.stops)
            shapes = bool(defaults) or changes_values(profile)
            known = self._families[profile.id] = _Chosen(profile, facts, family, why, defaults, stops, shapes)
        return known


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A model's family and why it is that one, and what it says once and for all of a server with these facts.

    `shapes` = its defaults or the profile have values of their own.
    """

    profile: Profile
    facts: Facts
    family: Family
    why: str
    defaults: Mapping[str, Any]
    stops: Sequence[str]
    shapes: bool


def _asked(needs: Needs) -> dict[str, Any]:
    """Return the members of an upstream body that ask for what a surface's answer needs."""
    body: dict[str, Any] = {}
    if needs.stop_sequence:
        # The only place where llama-server names the stop string; without the filter it also holds the whole prompt.
        body |= {"verbose": True, "response_fields": ["stop_type", "stopping_word"]}
    if needs.prompt_progress:
        body["return_progress"] = True
    return body


def filter_of(shaped: Shaped, exchange: Exchange) -> Filter | None:
    """Return what an answer's events go through: the family's filter, the form's tool, stops beside the client's."""
    family, request = shaped.family, shaped.request
    if family is None or not isinstance(request, ChatRequest):
        return None
    if shaped.answer_tool:
        request = replace(request, output=None)  # a call that is nothing but JSON is the answer
    found: Filter | None = call_plugin(family.name, family.filter, request, exchange.report, exchange.seed)
    if shaped.answer_tool:
        found = kit.chain((found, AnswerText(shaped.answer_tool, exchange.report)))
    assert exchange.parsed is not None
    stops = family.stops()
    own = frozenset(stops).difference(exchange.parsed.request.sampling.get("stop") or ()) if stops else stops
    return kit.chain((found, kit.OwnStops(own))) if own else found


def call_plugin(name: str, call: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a plugin; what it raises beside a `DeckError` is its fault, not the client's."""
    try:
        return call(*arguments)
    except DeckError:
        raise
    except Exception as exc:
        raise _at_fault(name, exc) from exc


def _at_fault(name: str, exc: Exception) -> DeckError:
    return DeckError(ErrorKind.INTERNAL, f"the plugin {name!r} failed on this request: {type(exc).__name__}")


def filtered_by(name: str, filtered: Filter, events: list[Event]) -> list[Event]:
    """Return what the filter of a plugin makes of events; what it raises is as in `call_plugin`."""
    found: list[Event] = []
    try:
        for event in events:
            found += filtered.feed(event)
    except DeckError:
        raise
    except Exception as exc:
        raise _at_fault(name, exc) from exc
    return found


def check_declared(request: Request, profile: Profile) -> None:
    """Refuse what the model is known not to do before anything is started."""
    if request.output is not None and request.output.kind != "grammar" and profile.can("json_schema") is False:
        mode, path = request.output.kind, request.output.path
        raise invalid(f"{path}: the model {profile.id!r} cannot be held to {mode}", path)
    if isinstance(request, TextRequest):
        return
    for kind, ability, word in _MEDIA:
        if profile.can(ability) is False and (origin := has_kind(request, kind)) is not None:
            raise _unreadable(origin, kind, f"the model {profile.id!r} takes no {word}")
    if request.tools and profile.can("tools") is False:
        raise invalid(f"tools: the model {profile.id!r} calls no tools", "tools")


def _as_it_thinks(request: ChatRequest, profile: Profile, report: Report) -> ChatRequest:
    """Return the request without thinking where the model is declared not to think."""
    setting = request.reasoning
    if setting == UNSET_REASONING or profile.can("reasoning") is not False:
        return request
    if setting.enabled is not False:
        for path in setting.asked or (setting.path,):
            report.ignored(path, "this model does not think", field="reasoning_effort")
    return with_setting(request, UNSET_REASONING, report)


def _check_shaped(request: ChatRequest, exchange: Exchange, facts: Facts) -> None:
    """Refuse what cannot be honoured of a request in its last form."""
    assert exchange.parsed is not None
    paths = exchange.parsed.paths
    if facts.modalities and request.messages is not exchange.texts:
        check_measured(request, facts)
    if "logit_bias" in request.sampling:
        _check_biases(request, facts, paths)


def check_measured(request: ChatRequest, facts: Facts) -> None:
    """Refuse media that the running server says it cannot take."""
    if not facts.modalities:
        return
    for kind, modality, word in _MEDIA:
        if facts.modalities.get(modality) is False and (origin := has_kind(request, kind)) is not None:
            raise _unreadable(origin, kind, f"this model takes no {word}")


def _check_end(output: Output, sampling: Mapping[str, Any], paths: Mapping[str, str]) -> None:
    """Refuse an answer that may not end and must have a form: llama-server fails in the middle of it."""
    if sampling.get("ignore_eos"):
        path = paths.get("ignore_eos", "ignore_eos")
        raise invalid(f"{path}: an answer that keeps to {output.path} must end; leave one of them out", path)


def _check_biases(request: Request, facts: Facts, paths: Mapping[str, str]) -> None:
    """Refuse biases for tokens that the model does not have: llama-server leaves them out without a word."""
    biases, known = request.sampling.get("logit_bias"), facts.metadata.get("n_vocab")
    if not biases or not isinstance(known, int):
        return
    for token, _ in biases:
        if isinstance(token, int) and token >= known:
            path = paths.get("logit_bias", "logit_bias")
            raise invalid(f"{path}: this model has no token {token}; its ids are 0 to {known - 1}", path)


def _unreadable(origin: str, kind: type[Image | Audio], why: str) -> DeckError:
    # At "could not process image" Claude Code takes the image out, tells the model so, and goes on.
    return invalid(f"{origin}.content: could not process {kind.__name__.lower()}: {why}", f"{origin}.content")
