"""The kinds of OpenAI's Responses: of tools, of choices among them, of items and of the parts of a message."""

from typing import Final

from appliance.requests.chat_kinds import FREE_TEXT, UNSEEN
from appliance.requests.kinds import Kinds

_SERVER_TOOL: Final = "is a server tool and is not served here: define a function, or use a server of tools (type mcp)"
_TRAINED_TOOL: Final = "has a schema that only OpenAI's models know and is not served here: define it as a function"
_SERVER_ITEM: Final = "is of a built-in tool, and none is served here"

_ON_SERVERS: Final = "(web_search|file_search|code_interpreter|image_generation|tool_search|program).*"
_TRAINED: Final = "(computer|local_shell|shell|apply_patch).*"
_REASONS: Final = {
    _ON_SERVERS: _SERVER_TOOL,
    _TRAINED: _TRAINED_TOOL,
    "custom": FREE_TEXT,
}
MCP_ITEMS: Final = ("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response")
TOOLS: Final = Kinds("a tool", frozenset({"function", "mcp"}), _REASONS)
CHOICES: Final = Kinds("a tool choice", frozenset({"function", "mcp", "allowed_tools"}), _REASONS)
ITEMS: Final = Kinds(
    "an item",
    frozenset({None, "message", "function_call", "function_call_output", "reasoning", *MCP_ITEMS}),
    {
        "custom_tool_call.*": f"is of a tool that {FREE_TEXT}",
        "item_reference": "is not in this version: send the item itself, or previous_response_id",
        f"{_ON_SERVERS}|{_TRAINED}": _SERVER_ITEM,
    },
)
PARTS: Final = Kinds(
    "content",
    frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"}),
    {"input_image|input_file|input_audio|computer_screenshot": UNSEEN},
)
