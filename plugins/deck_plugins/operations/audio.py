"""Speech and transcription, as the OpenAI API has them; any backend that speaks it serves them.

Sources: the OpenAI API reference and SDK types; llama.cpp's server for what it reads of a transcription.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deck.api import (
    Asked,
    Field,
    FieldType,
    Operation,
    Report,
    Table,
    Values,
    anything,
    array,
    boolean,
    number,
    one_of,
    string,
    strings,
    upload,
    wrong_type,
)
from deck_plugins.openai_wire import render_error

_UNREAD = "llama-server's transcription does not read it"


def _voice() -> FieldType:
    def check(item: Any, path: str, report: Report) -> Any:
        is_object = isinstance(item, dict) and set(item) == {"id"} and isinstance(item["id"], str)
        if not is_object and (not isinstance(item, str) or not item):
            raise wrong_type(path, "a voice's name, or an object with its id", item)
        return item

    return FieldType("any", "a voice's name, or an object with its id", check)


def _read_speech(values: Values, report: Report) -> Asked:
    fields = {name: item for name, item in values.values.items() if name != "model"}
    return Asked(fields=fields, stream=fields.get("stream_format") == "sse")


def _ends_speech(event: Mapping[str, Any]) -> bool:
    return event.get("type") == "speech.audio.done"


SPEECH = Operation(
    name="speech",
    title="Speech",
    paths=("/audio/speech",),
    kinds={"speech": frozenset()},
    route="/v1/audio/speech",
    tables={
        "": Table(
            "speech",
            (
                Field.mapped("model", string(empty=False)),
                Field.mapped("input", string(empty=False)),
                Field.mapped("voice", _voice()),
                Field.mapped("instructions", string()),
                Field.mapped("response_format", one_of("mp3", "opus", "aac", "flac", "wav", "pcm")),
                Field.mapped("speed", number(0.25, 4)),
                Field.mapped("stream_format", one_of("audio", "sse")),
            ),
        )
    },
    render_error=render_error,
    required=("input", "voice"),
    answers=frozenset({"bytes", "events"}),
    read=_read_speech,
    is_last=_ends_speech,
)


def _ends_transcript(event: Mapping[str, Any]) -> bool:
    return event.get("type") == "transcript.text.done"


TRANSCRIPTIONS = Operation(
    name="transcriptions",
    title="Transcriptions",
    paths=("/audio/transcriptions",),
    kinds={"transcription": frozenset()},
    route="/v1/audio/transcriptions",
    tables={
        "": Table(
            "transcriptions",
            (
                Field.mapped("model", string(empty=False)),
                Field.mapped("file", upload()),
                Field.mapped("language", string()),
                Field.mapped("languages", strings(most=64)),
                Field.mapped("prompt", string()),
                Field.mapped("keywords", strings(most=1000)),
                Field.mapped("response_format", one_of("json", "text", "srt", "verbose_json", "vtt", "diarized_json")),
                Field.mapped("temperature", number(0, 2)),
                Field.mapped("timestamp_granularities", strings(most=2, known=frozenset({"word", "segment"}))),
                Field.mapped("include", strings(most=16)),
                Field.mapped("chunking_strategy", anything('"auto", or an object, as JSON or by members')),
                Field.mapped("known_speaker_names", strings(most=16)),
                Field.mapped("known_speaker_references", array()),
                Field.mapped("stream", boolean()),
            ),
        )
    },
    render_error=render_error,
    required=("file",),
    form="multipart",
    answers=frozenset({"json", "bytes", "events"}),
    is_last=_ends_transcript,
    unread=dict.fromkeys(
        (
            "languages",
            "keywords",
            "timestamp_granularities",
            "include",
            "chunking_strategy",
            "known_speaker_names",
            "known_speaker_references",
        ),
        _UNREAD,
    ),
)
