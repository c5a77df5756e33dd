"""Detects the content format of a chat template without rendering it."""

import re
from typing import Literal

ContentFormat = Literal["string", "openai"]

_NAME = r"(?:content\b|\w+\s*(?:\.\s*content\b|\[\s*['\"]content['\"]\s*\]))"
_PARTS_LOOP = re.compile(rf"\bfor\s+\w+\s+in\s+{_NAME}")


def detect_content_format(source: str) -> ContentFormat:
    """Returns the form of message content that a template reads: "openai" if it loops over the parts of a content."""
    return "openai" if _PARTS_LOOP.search(source) else "string"
