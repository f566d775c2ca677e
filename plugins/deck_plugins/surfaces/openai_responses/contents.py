"""Read contents of items, a string or parts, into canonical parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deck.api import Audio, Image, Part, Reader, Table, Text, Values, image_of_url, invalid, wrong_type

from .item_fields import AUDIO, IMAGE, PARTS, THOUGHTS

_FILES = "files are not read here; send their text as input_text"


class Contents:
    """Reads the contents of one request.

    Args:
        reader: of the request.
        remote: http(s) URLs of images may be passed on.
    """

    def __init__(self, reader: Reader, remote: bool) -> None:
        self._reader = reader
        self._remote = remote

    def read(self, content: Any, path: str, tables: Mapping[str, Table] = PARTS) -> tuple[Part, ...]:
        """Return the parts of a content, whose kinds stand in `tables`; null and empty texts are none.

        Raises:
            DeckError: a part has a shape that cannot be honoured.
        """
        if content is None or content == "":
            return ()
        if isinstance(content, str):
            return (Text(content),)
        if not isinstance(content, list):
            raise wrong_type(path, "a string, null or an array of parts", content)
        found = (self._part(item, f"{path}[{place}]", tables) for place, item in enumerate(content))
        return tuple(part for part in found if part is not None)

    def _part(self, item: Any, path: str, tables: Mapping[str, Table]) -> Part | None:
        kind, part = _typed(self._reader, item, path, tables)
        match kind:
            case "input_image":
                return self._image(part, path)
            case "input_audio":
                return self._audio(part, path)
            case "refusal":
                self._reader.report.changed(path, "a refusal is read as text", shown=f"{path}:refusal>output_text")
                text = part.get("refusal", "")
            case "encrypted_content":
                text = part.get("encrypted_content", "")
            case _:
                text = part.get("text", "")
        return Text(text) if text else None

    def _image(self, part: Values, path: str) -> Image:
        sent, where = part.get("image_url"), f"{path}.image_url"
        if isinstance(sent, dict):
            self._reader.report.changed(where, "an object is read as its url", shown=f"{where}:object>string")
            sent, where = self._reader.read(IMAGE, sent, where).get("url"), f"{where}.url"
        if sent is None:
            raise invalid(f"{where} is required", where, "missing_required_parameter")
        if not isinstance(sent, str):
            raise wrong_type(where, "a string", sent)
        return image_of_url(sent, where, remote=self._remote)

    def _audio(self, part: Values, path: str) -> Audio:
        sent, where = part.get("input_audio"), f"{path}.input_audio"
        audio = self._reader.read(AUDIO, sent or {}, where)
        for name in ("data", "format"):
            if name not in audio:
                raise invalid(f"{where}.{name} is required", f"{where}.{name}", "missing_required_parameter")
        return Audio(audio.get("data"), audio.get("format"))


def read_thoughts(reader: Reader, items: list[Any], path: str) -> str:
    """Return the text of a reasoning item's `content` or `summary`.

    Raises:
        DeckError: a part has a shape that cannot be honoured.
    """
    found = (_typed(reader, item, f"{path}[{place}]", THOUGHTS)[1] for place, item in enumerate(items))
    return "\n".join(text for part in found if (text := part.get("text")))


def _typed(reader: Reader, item: Any, path: str, tables: Mapping[str, Table]) -> tuple[str, Values]:
    if not isinstance(item, dict):
        raise wrong_type(path, "an object with a type", item)
    kind = item.get("type")
    table = tables.get(kind) if isinstance(kind, str) else None
    if table is None or not isinstance(kind, str):
        reason = _FILES if kind == "input_file" else f"known: {', '.join(tables)}"
        where = f"{path}.type"
        raise invalid(f"{where}: {kind!r} is not supported here; {reason}", where, "unsupported_value")
    return kind, reader.read(table, item, path)
