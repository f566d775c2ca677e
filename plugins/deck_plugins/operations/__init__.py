"""Operations: embeddings, ranks, sound, images, and llama-server's own routes for tokens, templates and infilling."""

from __future__ import annotations

from collections.abc import Iterable

from deck.api import Operation, hookimpl

from .audio import SPEECH, TRANSCRIPTIONS
from .images import IMAGE_EDITS, IMAGES
from .infill import INFILL
from .tokens import APPLY_TEMPLATE, DETOKENIZE, TOKENIZE
from .vectors import EMBEDDINGS, RERANK

OPERATIONS = (
    EMBEDDINGS,
    RERANK,
    SPEECH,
    TRANSCRIPTIONS,
    IMAGES,
    IMAGE_EDITS,
    INFILL,
    TOKENIZE,
    DETOKENIZE,
    APPLY_TEMPLATE,
)


@hookimpl
def deck_register_operations(config: object) -> Iterable[Operation]:
    """Register Deck's own operations."""
    return OPERATIONS
