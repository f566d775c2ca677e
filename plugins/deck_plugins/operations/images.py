"""Images made and changed, as the OpenAI API has them; any backend that speaks it serves them.

Sources: the OpenAI API reference and SDK types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deck.api import Answers, Field, Operation, Table, boolean, integer, mapping, one_of, string, upload
from deck_plugins.openai_wire import render_error

_KEEPS_NOTHING = "Deck keeps nothing"
_MODERATION = "Deck moderates nothing"
_SIZE = r"auto|[1-9]\d{0,4}x[1-9]\d{0,4}"
_QUALITIES = ("low", "medium", "high", "xhigh", "max", "auto", "standard")
_ANSWERS: frozenset[Answers] = frozenset({"json", "events"})

_SHARED = (
    Field.mapped("model", string(empty=False)),
    Field.mapped("prompt", string(empty=False)),
    Field.mapped("n", integer(1, 128)),
    Field.mapped("size", string(pattern=_SIZE)),
    Field.mapped("background", one_of("transparent", "opaque", "auto")),
    Field.mapped("output_format", one_of("png", "webp", "jpeg", "gif", "svg")),
    Field.mapped("output_compression", integer(0, 100)),
    Field.mapped("partial_images", integer(0, 3)),
    Field.mapped("stream", boolean()),
    Field.mapped("complexity", one_of("low", "medium", "high")),
    Field.mapped("frame_count", integer(2, 16)),
    Field.mapped("frame_duration_ms", integer(1)),
    Field.mapped("response_format", one_of("url", "b64_json")),
    Field.annotation("moderation", _MODERATION),
    Field.annotation("user", _KEEPS_NOTHING),
    Field.annotation("safety_identifier", _KEEPS_NOTHING),
)


def _is_last(event: Mapping[str, Any]) -> bool:
    kind = event.get("type")
    return isinstance(kind, str) and kind.endswith(".completed")


IMAGES = Operation(
    name="images",
    title="Images",
    paths=("/images/generations",),
    kinds={"image": frozenset()},
    route="/v1/images/generations",
    tables={
        "": Table(
            "images",
            (
                *_SHARED,
                Field.mapped("quality", one_of(*_QUALITIES, "hd")),
                Field.mapped("style", one_of("vivid", "natural")),
                Field.mapped("svg", mapping()),
            ),
        )
    },
    render_error=render_error,
    required=("prompt",),
    answers=_ANSWERS,
    is_last=_is_last,
)

IMAGE_EDITS = Operation(
    name="image-edits",
    title="Image edits",
    paths=("/images/edits",),
    kinds={"image": frozenset()},
    route="/v1/images/edits",
    tables={
        "": Table(
            "image edits",
            (
                *_SHARED,
                Field.mapped("image", upload(several=True)),
                Field.mapped("mask", upload()),
                Field.mapped("markup", upload()),
                Field.mapped("quality", one_of(*_QUALITIES)),
                Field.mapped("input_fidelity", one_of("high", "low")),
                Field.mapped("svg", mapping()),
            ),
        )
    },
    render_error=render_error,
    required=("image", "prompt"),
    form="multipart",
    answers=_ANSWERS,
    is_last=_is_last,
)
