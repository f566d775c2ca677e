"""All field tables of Responses by the path they apply to."""

from __future__ import annotations

from deck.api import Table, reasoning

from . import fields, item_fields, tool_fields

TABLES: dict[str, Table] = {
    "": fields.FIELDS,
    "stream_options": fields.STREAM_OPTIONS,
    "reasoning": fields.REASONING,
    "thinking": reasoning.THINKING,
    "chat_template_args": reasoning.TEMPLATE_ARGS,
    "text": fields.TEXT,
    "text.format": fields.FORMAT,
    "include[]": fields.INCLUDE,
    "prompt_cache_options": fields.CACHE_OPTIONS,
    "input[].type": item_fields.ITEMS,
    "input[message]": item_fields.MESSAGE,
    "input[agent_message]": item_fields.AGENT_MESSAGE,
    "input[agent_message].content[encrypted_content]": item_fields.AGENT_PARTS["encrypted_content"],
    "input[additional_tools]": item_fields.ADDITIONAL_TOOLS,
    "input[reasoning]": item_fields.REASONING_ITEM,
    "input[function_call]": item_fields.CALL,
    "input[function_call_output]": item_fields.RESULT,
    "input[custom_tool_call]": item_fields.CUSTOM_CALL,
    "input[custom_tool_call_output]": item_fields.CUSTOM_RESULT,
    **{f"input[].content[{name}]": table for name, table in item_fields.PARTS.items()},
    "input[].content[].image_url": item_fields.IMAGE,
    "input[].content[].input_audio": item_fields.AUDIO,
    "input[reasoning].content[]": item_fields.THOUGHTS["reasoning_text"],
    "input[reasoning].content[text]": item_fields.THOUGHTS["text"],
    "input[reasoning].summary[]": item_fields.THOUGHTS["summary_text"],
    "tools[].type": tool_fields.TOOLS,
    "tools[function]": tool_fields.FUNCTION,
    "tools[custom]": tool_fields.CUSTOM,
    "tools[custom].format": tool_fields.CUSTOM_FORMAT,
    "tools[namespace]": tool_fields.NAMESPACE,
    "tool_choice": tool_fields.CHOICE,
}
