"""What a fake llama-server says of itself on its routes of observation."""

from __future__ import annotations

from typing import Any


def props_of(alias: str, n_ctx: int, slots: int) -> dict[str, Any]:
    """Return what `/props` answers."""
    return {
        "default_generation_settings": {"n_ctx": n_ctx, "params": {}},
        "total_slots": slots,
        "model_alias": alias,
        "model_path": f"/models/{alias}.gguf",
        "modalities": {"vision": False, "audio": False},
        "chat_template": "{{ messages }}",
        "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True, "supports_system_role": True},
        "build_info": "b11434-fake",
        "is_sleeping": False,
    }


def model_of(alias: str, n_ctx: int) -> dict[str, Any]:
    """Return what `/v1/models` says of one model."""
    return {
        "id": alias,
        "aliases": [alias],
        "object": "model",
        "created": 1767225600,
        "owned_by": "llamacpp",
        "meta": {"n_ctx": n_ctx, "n_ctx_train": n_ctx},
    }
