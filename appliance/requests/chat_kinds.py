"""The kinds of chat completions: of tools, of calls and of the parts of a message."""

from typing import Final

from appliance.requests.kinds import Kinds

FREE_TEXT: Final = "takes free text, and only functions are served here: define a function with one parameter of text"
UNSEEN: Final = "is not in this version: the model reads text alone"

CHAT_TOOLS: Final = Kinds("a tool", frozenset({"function"}), {"custom": FREE_TEXT})
CHAT_CHOICES: Final = Kinds("a tool choice", frozenset({"function", "allowed_tools"}), {"custom": FREE_TEXT})
CHAT_CALLS: Final = Kinds("a tool call", frozenset({"function"}), {"custom": FREE_TEXT})
CHAT_PARTS: Final = Kinds(
    "content",
    frozenset({"text", "input_text", "refusal"}),
    {"image.*|input_image|audio.*|input_audio|video.*|file|input_file": UNSEEN},
)
