"""The kinds of Anthropic's Messages: of tools, of blocks, of edits of the context and of thinking.

Tools of other kinds than `custom` come in two sorts: those that Anthropic's servers run, and those that a client runs,
whose schemas stand in no request because Claude was trained on them.
"""

from typing import Final

from appliance.requests.chat_kinds import UNSEEN
from appliance.requests.kinds import Kinds

CLEAR_TOOL_USES: Final = "clear_tool_uses_20250919"
CLEAR_THINKING: Final = "clear_thinking_20251015"

_SERVER_TOOL: Final = (
    "is a server tool and is not served here: define a tool of your own with an input_schema, and run its calls"
)
_TRAINED_TOOL: Final = (
    "has a schema that only Claude knows and is not served here: define it as a tool of your own with an input_schema"
)
_SERVER_BLOCK: Final = "is of a server tool, and none is served here"

TOOLS: Final = Kinds(
    "a tool",
    frozenset({None, "custom"}),
    {
        "(web_search|web_fetch|code_execution|tool_search_tool|advisor|mcp_toolset).*": _SERVER_TOOL,
        "(bash|text_editor|computer|memory|browser).*": _TRAINED_TOOL,
    },
)
BLOCKS: Final = Kinds(
    "content",
    frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"}),
    {
        "image|document|search_result|container_upload": UNSEEN,
        "server_tool_use|mcp_.*|.*_tool_result": _SERVER_BLOCK,
        "tool_addition|tool_removal|tool_reference": "is not in this version: all tools stand in the field `tools`",
    },
)
EDITS: Final = Kinds(
    "an edit",
    frozenset({CLEAR_TOOL_USES, CLEAR_THINKING}),
    {"compact_.*": "is not in this version: no server of ours sums a conversation up"},
)
THINKING: Final = Kinds("thinking", frozenset({"enabled", "disabled", "adaptive"}))
