"""What `deck probe` concludes from what a server answers, above all where it fails."""

from __future__ import annotations

import base64
import io
import json
import wave
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from probe_support import able, calling, probed, question, saying, whole

from deck.probe_measures import MEASURES, red_square, tone
from deck.profile import Measured
from deck.testing.fake_llama import Act, Received, Reply, refuse
from deck.testing.frames import content, reasoning, role

SEEING = {"default_generation_settings": {"n_ctx": 4096}, "modalities": {"vision": True, "audio": True}}
JINJA = "Jinja Exception: Only user and assistant roles are supported!"


def always(*frames: bytes, **rest: Any) -> Callable[[Received], Reply]:
    return lambda request: saying(*frames, **rest)


def test_a_model_that_can_everything(tmp_path: Path) -> None:
    found = probed(tmp_path, routes={"/props": SEEING})
    values = {name: item.value for name, item in found.findings.items()}
    assert {name for name, value in values.items() if value is True} == {
        *("text", "streaming", "system", "developer", "late_system", "tools", "parallel_tools", "required_tools"),
        *("tool_results", "reasoning", "reasoning_off", "efforts", "json_schema", "vision", "audio"),
    }
    assert values["context"] == 4096
    assert found.begun == [f"asking {found.fake.url}", *(item.title for item in MEASURES)]


def test_each_measure_has_its_key_and_each_key_its_measure() -> None:
    keys = set(Measured.model_fields) - {"at", "of", "build"}
    assert [item.name for item in MEASURES if item.name not in keys] == []
    assert keys == {item.name for item in MEASURES}
    assert len({item.title for item in MEASURES}) == len(MEASURES)


def test_what_is_declared_does_not_stand_in_the_way(tmp_path: Path) -> None:
    more = "[capabilities]\ntools = false\nreasoning = false\njson_schema = false\nvision = false\n"
    found = probed(tmp_path, able, "tools", "reasoning", "json_schema", more=more)
    assert [item.value for item in found.findings.values()] == [True, True, True]


@pytest.mark.parametrize(
    ("more", "sampling"),
    [
        ("", {"temperature": 0.0}),
        ("[defaults]\ntemperature = 0.6\n", {"temperature": 0.6}),
        ("[force]\ntop_k = 7\n", {"temperature": 0.0, "top_k": 7}),
    ],
    ids=["nobody", "recommended", "forced"],
)
def test_the_profile_s_sampling_is_in_force(tmp_path: Path, more: str, sampling: dict[str, Any]) -> None:
    body = probed(tmp_path, able, "text", more=more).fake.chats[0].json()
    assert {name: body[name] for name in ("temperature", "top_k") if name in body} == sampling
    assert body["seed"] == 1


class TestText:
    def test_an_empty_answer_is_no_answer(self, tmp_path: Path) -> None:
        found = probed(tmp_path, always(), "text")
        assert found.value("text") is None
        assert found.remark("text") == "the answer was empty"

    def test_thoughts_without_an_end_prove_nothing(self, tmp_path: Path) -> None:
        found = probed(tmp_path, always(reasoning("Hm"), reason="length"), "text")
        assert found.value("text") is None
        assert "did not come to an answer" in found.remark("text")

    @pytest.mark.parametrize(("texts", "tokens", "value"), [("ab", 2, True), ("a", 2, False), ("a", 1, None)])
    def test_streaming_is_more_than_one_piece(
        self, tmp_path: Path, texts: str, tokens: int, value: bool | None
    ) -> None:
        found = probed(tmp_path, always(*map(content, texts), tokens=tokens), "streaming")
        assert found.value("streaming") is value


class TestRoles:
    def test_the_template_is_asked_without_the_family(self, tmp_path: Path) -> None:
        found = probed(tmp_path, able, "system", "developer", "late_system")
        assert [[turn["role"] for turn in body["messages"]] for body in found.prompts()] == [
            ["system", "user"],
            ["developer", "user"],
            ["user", "assistant", "system", "user"],
        ]
        assert found.fake.chats == []

    def test_a_turn_that_is_left_out_is_no_support(self, tmp_path: Path) -> None:
        found = probed(tmp_path, able, "system", template=lambda request: {"prompt": "user: Hello"})
        assert (found.value("system"), found.remark("system")) == (False, "its template leaves it out")

    def test_without_the_route_nothing_is_known(self, tmp_path: Path) -> None:
        found = probed(tmp_path, able, "system", "efforts", template=None)
        assert [item.value for item in found.findings.values()] == [None, None]

    def test_a_strange_answer_proves_nothing(self, tmp_path: Path) -> None:
        assert probed(tmp_path, able, "system", template=lambda request: {}).value("system") is None


class TestTools:
    def test_text_instead_of_a_call_proves_nothing(self, tmp_path: Path) -> None:
        found = probed(tmp_path, always(content("Sunny.")), "tools")
        assert found.value("tools") is None
        assert "'Sunny.'" in found.remark("tools")

    def test_a_template_that_hides_the_tools_does(self, tmp_path: Path) -> None:
        found = probed(tmp_path, always(content("Sunny.")), "tools", template=lambda request: {"prompt": "Hello"})
        assert (found.value("tools"), found.remark("tools")) == (False, "its template shows it no tools")

    def test_text_without_a_look_at_the_template_proves_nothing(self, tmp_path: Path) -> None:
        assert probed(tmp_path, always(content("Sunny.")), "tools", template=None).value("tools") is None

    def test_a_refusal_proves_it(self, tmp_path: Path) -> None:
        found = probed(tmp_path, lambda request: refuse(500, JINJA), "tools", "tool_results")
        assert [item.value for item in found.findings.values()] == [False, False]
        assert "Jinja Exception" in found.remark("tools")

    def test_one_call_is_not_two(self, tmp_path: Path) -> None:
        found = probed(tmp_path, lambda request: calling("Paris"), "parallel_tools")
        assert found.value("parallel_tools") is False
        assert "it made 1 call" in found.remark("parallel_tools")

    def test_a_required_call_that_does_not_come(self, tmp_path: Path) -> None:
        found = probed(tmp_path, always(content("Hi")), "required_tools")
        assert found.value("required_tools") is False
        assert found.fake.chats[0].json()["tool_choice"] == "required"
        cut = probed(tmp_path, always(content("Hi"), reason="length"), "required_tools")
        assert cut.value("required_tools") is None


class TestThinking:
    def test_a_model_that_never_thinks(self, tmp_path: Path) -> None:
        found = probed(tmp_path, always(content("Paris")), "reasoning", "reasoning_off")
        assert (found.value("reasoning"), found.value("reasoning_off")) == (False, True)

    def test_a_model_that_always_thinks(self, tmp_path: Path) -> None:
        found = probed(tmp_path, always(reasoning("Hm."), content("Paris")), "reasoning", "reasoning_off")
        assert (found.value("reasoning"), found.value("reasoning_off")) == (True, False)
        assert "'Hm.'" in found.remark("reasoning_off")

    def test_efforts_that_make_no_difference(self, tmp_path: Path) -> None:
        found = probed(tmp_path, able, "efforts", template=lambda request: {"prompt": "Hello"})
        assert found.value("efforts") is False
        assert [body["reasoning_effort"] for body in found.prompts()] == ["low", "high"]


@pytest.mark.parametrize(
    ("text", "reason", "value"),
    [
        ('{"name": "Ana", "age": 31, "city": "Rome"}', "stop", True),
        ('{"name": "Ana", "age": "31", "city": "Rome"}', "stop", False),
        ('{"name": "Ana", "age": 31}', "stop", False),
        ("Ana is 31.", "stop", False),
        ('{"name": "Ana', "length", None),
    ],
)
def test_a_schema_is_kept_or_not(tmp_path: Path, text: str, reason: str, value: bool | None) -> None:
    found = probed(tmp_path, always(content(text), reason=reason), "json_schema")
    assert found.value("json_schema") is value
    assert found.fake.chats[0].json()["response_format"]["type"] == "json_schema"


class TestMedia:
    def test_what_the_server_lacks_is_not_asked_for(self, tmp_path: Path) -> None:
        found = probed(tmp_path, able, "vision", "audio")
        assert [item.value for item in found.findings.values()] == [False, False]
        assert found.fake.chats == []

    def test_a_picture_and_a_tone_are_sent(self, tmp_path: Path) -> None:
        found = probed(tmp_path, able, "vision", "audio", routes={"/props": SEEING})
        parts = [chat.json()["messages"][0]["content"][0] for chat in found.fake.chats]
        assert parts[0]["image_url"]["url"] == red_square()
        assert parts[1]["input_audio"] == {"data": tone(), "format": "wav"}

    def test_a_refused_picture_is_no(self, tmp_path: Path) -> None:
        words = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
        found = probed(tmp_path, lambda request: refuse(500, words), "vision", routes={"/props": {"total_slots": 1}})
        assert found.value("vision") is False
        assert "not supported" in found.remark("vision")

    def test_the_picture_is_a_red_square(self) -> None:
        data = base64.b64decode(red_square(8).removeprefix("data:image/png;base64,"))
        pixels = zlib.decompress(data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8])
        assert pixels == (b"\0" + b"\xff\0\0" * 8) * 8

    def test_the_tone_is_a_wave_file(self) -> None:
        with wave.open(io.BytesIO(base64.b64decode(tone(0.1)))) as file:
            assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
            assert file.getnframes() == 1600


class TestSpeed:
    def test_llama_server_s_own_clock_counts(self, tmp_path: Path) -> None:
        def timed(request: Received) -> Reply:
            reply = saying(content("1"))
            *before, last, end = reply.steps
            assert isinstance(last, bytes)
            value = json.loads(last.removeprefix(b"data: "))
            value["timings"] |= {"prompt_per_second": 812.44, "predicted_per_second": 40.06, "prompt_n": 400}
            return Reply(steps=(*before, b"data: " + json.dumps(value).encode() + b"\n\n", end))

        found = probed(tmp_path, timed, "prompt_speed", "speed")
        assert (found.value("prompt_speed"), found.value("speed")) == (812.4, 40.1)
        assert found.remark("prompt_speed") == "400 tokens of prompt"
        reads, writes = (chat.json() for chat in found.fake.chats)
        assert (reads["max_tokens"], reads["cache_prompt"], writes["ignore_eos"]) == (1, False, True)
        assert len(question(reads).split()) > 300

    def test_without_it_deck_s_own_does_for_writing_only(self, tmp_path: Path) -> None:
        found = probed(tmp_path, always(content("1"), content("2"), tokens=50), "prompt_speed", "speed")
        assert found.value("prompt_speed") is None
        assert found.value("speed") > 0

    def test_the_prompt_fits_a_small_context(self, tmp_path: Path) -> None:
        found = probed(tmp_path, able, "prompt_speed", n_ctx=400)
        assert len(question(found.fake.chats[0].json()).split()) < 120


@pytest.mark.parametrize(
    "reply",
    [
        refuse(500, "something broke"),
        refuse(503, "Loading model", "unavailable_error"),
        Reply(steps=(role(), content("a"), Act.RESET)),
        Reply(steps=(role(), content("a"), Act.CLOSE)),
        Reply(steps=(role(), b"data: {garbage\n\n")),
    ],
    ids=["500", "503", "reset", "cut", "garbage"],
)
def test_a_server_that_fails_proves_nothing_and_the_next_measure_runs(tmp_path: Path, reply: Reply) -> None:
    replies = iter([reply])
    found = probed(tmp_path, lambda request: next(replies, None) or able(request), "text", "tools")
    assert found.value("text") is None
    assert found.remark("text")
    assert found.value("tools") is True


def test_a_measure_that_takes_too_long_is_given_up_and_the_next_one_runs(tmp_path: Path) -> None:
    replies = iter([Reply(steps=(role(), Act.STALL))])
    found = probed(tmp_path, lambda request: next(replies, None) or able(request), "text", "tools", limit=0.5)
    assert (found.value("text"), found.remark("text")) == (None, "not done after 0.5 s")
    assert found.value("tools") is True
    assert found.fake.chats[0].is_cancelled


def test_the_template_route_sees_what_llama_server_would_get(tmp_path: Path) -> None:
    seen: list[Any] = []

    def template(request: Received) -> dict[str, Any]:
        seen.append(request.json())
        return whole(request)

    probed(tmp_path, able, "efforts", template=template)
    assert all(body["stream"] is False and "messages" in body for body in seen)
