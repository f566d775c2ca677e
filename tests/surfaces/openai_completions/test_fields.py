"""Every field of a Completions request: honoured, translated, reported or refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from chat_support import changed, ignored
from completions_support import body, parse, refusal, upstream

from deck.api import TextRequest, Treatment
from deck_plugins.surfaces.openai_completions.fields import FIELDS

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ("Once", "Once"),
        ("", ""),
        (["Once"], "Once"),
        ([1, 2, 3], [1, 2, 3]),
        ([0], [0]),
        ([[1, 2, 3]], [1, 2, 3]),
        ([2**31 - 1], [2**31 - 1]),
    ],
)
def test_a_prompt_in_its_shapes(prompt: Any, sent: Any) -> None:
    got, report = upstream(body(prompt=prompt))
    assert got["prompt"] == sent
    assert report.headers() == []


@pytest.mark.parametrize(
    ("prompt", "param", "code"),
    [
        (None, "prompt", "missing_required_parameter"),
        (["a", "b"], "prompt", "unsupported_value"),
        ([[1], [2]], "prompt", "unsupported_value"),
        ([], "prompt", "unsupported_value"),
        ([[]], "prompt[0]", "unsupported_value"),
        ([1, "a"], "prompt[1]", "invalid_type"),
        ([1, None], "prompt[1]", "invalid_type"),
        ([True], "prompt[0]", "invalid_type"),
        ([1.5], "prompt[0]", "unsupported_value"),
        ([-1], "prompt[0]", "unsupported_value"),
        ([2**31], "prompt[0]", "unsupported_value"),
        ([[1, -5]], "prompt[0][1]", "unsupported_value"),
        ({"prompt_string": "a"}, "prompt", "invalid_type"),
        (7, "prompt", "invalid_type"),
    ],
)
def test_prompts_that_are_none(prompt: Any, param: str, code: str) -> None:
    error = refusal(body(prompt=prompt))
    assert (error.kind.status, error.param, error.code) == (400, param, code)


def test_a_prompt_and_a_model_are_required() -> None:
    assert refusal({"model": "m1"}).param == "prompt"
    assert refusal({"prompt": "a"}).param == "model"


def test_several_prompts_are_told_the_remedy() -> None:
    assert "a request of its own" in refusal(body(prompt=["a", "b"])).message


@pytest.mark.parametrize(
    ("fields", "sent", "told"),
    [
        ({}, {}, ()),
        ({"max_tokens": 16}, {"max_tokens": 16}, ()),
        ({"max_tokens": 0}, {"max_tokens": 0}, ()),
        ({"max_tokens": None}, {}, ()),
        ({"max_tokens": 2**31}, {"max_tokens": 2**31 - 1}, (f"max_tokens>{2**31 - 1}",)),
        ({"max_completion_tokens": 9}, {"max_tokens": 9}, ("max_completion_tokens>max_tokens",)),
        ({"max_new_tokens": 9}, {"max_tokens": 9}, ("max_new_tokens>max_tokens",)),
        ({"n_predict": 9}, {"max_tokens": 9}, ("n_predict>max_tokens",)),
        ({"num_predict": 9}, {"max_tokens": 9}, ("num_predict>max_tokens",)),
        ({"rep_pen": 1.1}, {"repeat_penalty": 1.1}, ("rep_pen>repeat_penalty",)),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}, ("repetition_penalty>repeat_penalty",)),
        ({"rep_pen_range": 64}, {"repeat_last_n": 64}, ("rep_pen_range>repeat_last_n",)),
        ({"repetition_penalty_range": -1}, {"repeat_last_n": 4096}, ("repetition_penalty_range>repeat_last_n",)),
        ({"typical": 0.9}, {"typical_p": 0.9}, ("typical>typical_p",)),
        ({"nsigma": 1}, {"top_n_sigma": 1}, ("nsigma>top_n_sigma",)),
        ({"mirostat_mode": 2}, {"mirostat": 2}, ("mirostat_mode>mirostat",)),
        ({"sampler_seed": 7}, {"seed": 7}, ("sampler_seed>seed",)),
        ({"stopping_strings": ["a"]}, {"stop": ["a"]}, ("stopping_strings>stop",)),
        ({"sampler_priority": ["top_k"]}, {"samplers": ["top_k"]}, ("sampler_priority>samplers",)),
        ({"ban_eos_token": True}, {"ignore_eos": True}, ("ban_eos_token>ignore_eos",)),
        ({"grammar_string": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}, ("grammar_string>grammar",)),
        ({"stop": [str(place) for place in range(20)]}, {"stop": [str(place) for place in range(20)]}, ()),
        ({"stop": []}, {}, ()),
        ({"logit_bias": []}, {}, ()),
        ({"logit_bias": {"5": -100}}, {"logit_bias": [[5, -100]]}, ()),
        ({"logprobs": 0}, {"logprobs": 1}, ()),
        ({"logprobs": 5}, {"logprobs": 5}, ()),
        ({"logprobs": False}, {}, ()),
        ({"return_token_ids": True}, {"logprobs": 1}, ()),
        ({"return_tokens": True, "logprobs": 3}, {"logprobs": 3}, ("return_tokens>return_token_ids",)),
        ({"timings_per_token": True}, {"timings_per_token": True}, ()),
        ({"stream": True, "return_progress": True}, {"return_progress": True}, ()),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}, ()),
        ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}, ()),
        ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}, ("guided_json>json_schema",)),
        ({"extra_body": {"top_k": 20}}, {"top_k": 20}, ()),
        ({"dry_sequence_breakers": ["\n"]}, {"dry_sequence_breakers": ["\n"]}, ()),
        ({"dry_sequence_breakers": '["\\n", ":"]'}, {"dry_sequence_breakers": ["\n", ":"]}, ("dry_sequence_breakers",)),
        ({"cache_prompt": False, "id_slot": None}, {"cache_prompt": False}, ()),
    ],
)
def test_what_has_its_effect(fields: dict[str, Any], sent: dict[str, Any], told: tuple[str, ...]) -> None:
    got, report = upstream(body(**fields))
    fixed = {"prompt": "Once", "stream": True, "stream_options": {"include_usage": True}}
    assert got == {**fixed, **sent}
    assert changed(report) == list(told)
    assert ignored(report) == []


def test_no_limit_is_sent_where_the_client_gives_none() -> None:
    """The vendor's default of 16 is not pretended: the profile's or the server's own applies."""
    assert "max_tokens" not in upstream(body())[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"best_of": 1},
        {"echo": False},
        {"suffix": ""},
        {"suffix": None},
        {"best_of": None},
        {"echo": None},
        {"n": None},
        {"store": False},
        {"service_tier": "default"},
        {"response_format": {"type": "text"}},
        {"n_probs": 0},
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"truncation_length": 8192},
        {"num_ctx": 8192},
        {"api_type": "generic"},
        {"api_server": "http://127.0.0.1:8484"},
        {"negative_prompt": "no"},
        {"tfs": 1},
        {"tfs_z": 1.0},
        {"top_a": 0},
        {"smoothing_factor": 0},
        {"smoothing_curve": 1},
        {"guidance_scale": 1},
        {"skip_special_tokens": True},
        {"add_bos_token": True},
        {"min_length": 0},
        {"custom_token_bans": ""},
        {"banned_strings": []},
        {"reasoning_format": "none"},
    ],
    ids=str,
)
def test_what_is_removed_and_reported(fields: dict[str, Any]) -> None:
    got, report = upstream(body(**fields))
    assert got == upstream(body())[0]
    assert ignored(report) == list(fields)
    assert changed(report) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": math.inf}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "}"}, "suffix"),
        ({"input_suffix": "}"}, "input_suffix"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 1.0}, "logprobs"),
        ({"logprobs": "1"}, "logprobs"),
        ({"n_probs": 10}, "n_probs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "0"}, "temperature"),
        ({"stop": [""]}, "stop[0]"),
        ({"tfs": 0.9}, "tfs"),
        ({"smoothing_factor": 0.3}, "smoothing_factor"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"sampler_priority": ["quadratic_sampling"]}, "sampler_priority[0]"),
        ({"sampler_order": [6, 0, 1]}, "sampler_order"),
        ({"do_sample": False}, "do_sample"),
        ({"banned_strings": ["a"]}, "banned_strings"),
        ({"messages": []}, "messages"),
        ({"tools": []}, "tools"),
        ({"input": "a"}, "input"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"grammar": 'root ::= "a"', "json_schema": SCHEMA}, "grammar"),
        ({"json_schema": SCHEMA, "guided_json": SCHEMA}, "guided_json"),
        ({"json_schema": "x"}, "json_schema"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"a": 1}}, "stream_options.a"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"rep_pen": 1.1, "repeat_penalty": 1.2}, "repeat_penalty"),
        ({"max_tokens": 5, "n_predict": 6}, "n_predict"),
        ({"extra_body": {"prompt": "b"}}, "extra_body.prompt"),
        ({"extra_body": {"echo": True}}, "extra_body.echo"),
        ({"dynatemp_low": 0.5}, "dynatemp_low"),
        ({"dynamic_temperature": True}, "dynamic_temperature"),
        ({"dry_sequence_breakers": "a"}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": "[1]"}, "dry_sequence_breakers[0]"),
        ({"id_slot": 1}, "id_slot"),
        ({"max_tokns": 5}, "max_tokns"),
    ],
    ids=str,
)
def test_what_is_refused_naming_the_field(fields: dict[str, Any], param: str) -> None:
    error = refusal(body(**fields))
    assert (error.kind.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("suffix", "}", "/infill"),
        ("messages", [], "/v1/chat/completions"),
        ("tools", [], "/v1/chat/completions"),
        ("input", "a", "/v1/responses"),
        ("enable_thinking", True, "no template"),
        ("best_of", 2, "one completion per request"),
        ("echo", True, "logprobs of a prompt"),
        ("response_format", {"type": "json_object"}, "json_schema"),
        ("sampler_order", [1], "samplers"),
    ],
)
def test_a_refusal_says_the_reason_and_where_to_go(name: str, value: Any, words: str) -> None:
    assert words in refusal(body(**{name: value})).message


def test_an_empty_grammar_is_off_and_reported() -> None:
    got, report = upstream(body(grammar="", json_schema=SCHEMA))
    assert "grammar" not in got
    assert got["json_schema"] == SCHEMA
    assert ignored(report) == ["grammar"]


def test_other_spellings_of_a_dynamic_temperature_stand_beside_the_range() -> None:
    fields = {"temperature": 1, "dynatemp_range": 0.5, "dynamic_temperature": True, "dynatemp_low": 0.5}
    got, report = upstream(body(**fields))
    assert (got["temperature"], got["dynatemp_range"]) == (1, 0.5)
    assert ignored(report) == ["dynamic_temperature", "dynatemp_low"]
    assert ignored(upstream(body(dynamic_temperature=False))[1]) == []


def test_keywords_of_a_schema_that_are_not_held_are_reported() -> None:
    loose = {"type": "object", "minProperties": 1}
    assert ignored(upstream(body(json_schema=loose))[1]) == ["json_schema.minProperties"]


def test_progress_is_a_thing_of_streams() -> None:
    assert ignored(upstream(body(return_progress=True))[1]) == ["return_progress"]


def test_lenient_drops_what_is_unknown_and_hints() -> None:
    got, report = upstream(body(foo=1, store=True), lenient=True)
    assert got == upstream(body())[0]
    assert ignored(report) == ["foo", "store"]
    assert refusal(body(echo=True), lenient=True).param == "echo"


def test_a_parsed_prompt_knows_that_it_is_raw() -> None:
    parsed, _ = parse(body(stream=True, max_tokens=0, rep_pen=1.1))
    request = parsed.request
    assert isinstance(request, TextRequest)
    assert (request.model, request.prompt, request.stream, request.is_prefill_only) == ("m1", "Once", True, True)
    assert parsed.paths["repeat_penalty"] == "rep_pen"


SILLYTAVERN: dict[str, Any] = {
    # What SillyTavern's "Generic" text completion sends with its neutral preset.
    "prompt": "Bob: hi\nAnn:",
    "model": "m1",
    "max_new_tokens": 200,
    "max_tokens": 200,
    "temperature": 1,
    "top_p": 1,
    "typical_p": 1,
    "typical": 1,
    "min_p": 0,
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_k": 0,
    "skew": 0,
    "min_tokens": 0,
    "add_bos_token": True,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_allowed_length": 2,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_sequence_breakers": '["\\n", ":", "\\"", "*"]',
    "dry_penalty_last_n": 0,
    "max_tokens_second": 0,
    "stopping_strings": ["\nBob:", "\nAnn:"],
    "stop": ["\nBob:", "\nAnn:"],
    "truncation_length": 8192,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "include_reasoning": True,
    "top_a": 0,
    "tfs": 1,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "custom_token_bans": "",
    "banned_strings": [],
    "api_type": "generic",
    "api_server": "http://127.0.0.1:8484",
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "nsigma": 0,
    "top_n_sigma": 0,
    "min_keep": 0,
    "adaptive_target": -0.01,
    "adaptive_decay": 0.9,
    "rep_pen": 1,
    "rep_pen_range": 0,
    "repetition_penalty_range": 0,
    "guidance_scale": 1,
    "negative_prompt": "",
    "repeat_penalty": 1,
    "repeat_last_n": 0,
    "n_predict": 200,
    "num_predict": 200,
    "num_ctx": 8192,
    "mirostat": 0,
    "ignore_eos": False,
    "rep_pen_slope": 1,
    "stream": True,
}


def test_sillytaverns_neutral_preset_is_accepted_and_accounted_for() -> None:
    got, report = upstream(SILLYTAVERN)
    assert got["max_tokens"] == 200
    assert got["stop"] == ["\nBob:", "\nAnn:"]
    assert got["dry_sequence_breakers"] == ["\n", ":", '"', "*"]
    noted = {note.path for note in report.notes}
    for name in SILLYTAVERN.keys() - noted - {"model"}:
        assert got[name] == (SILLYTAVERN[name] if name != "stream" else True), name
    assert "tfs" in ignored(report)
    assert "max_new_tokens>max_tokens" in changed(report)


@pytest.mark.parametrize(
    "row", [row for row in FIELDS if row.treatment is Treatment.TOLERATED], ids=lambda row: row.name
)
def test_a_tolerated_field_takes_its_values_and_null_and_nothing_else(row: Any) -> None:
    for value in (*row.allowed, None):
        assert ignored(upstream(body(**{row.name: value}))[1]) == [row.name]
    assert refusal(body(**{row.name: "something else"})).code == "unsupported_value"
