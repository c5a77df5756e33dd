"""Paths of a spec: `lora.adapters[0].source`. A key with other characters is quoted: `rope["a.b"]`."""

import json
import re
from typing import Any, Final

Path = tuple[str | int, ...]

ABSENT: Final = object()  # the result of `child` if there is no such part

_BARE = re.compile(r"[A-Za-z_][\w-]*")
_PART = re.compile(r'\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]')


def format_path(path: Path) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _BARE.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
    return text


def parse_path(text: str) -> Path:
    """Parses a path; the inverse of `format_path`. Raises ValueError."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        matched = _PART.match(text, at)
        if matched is None or (at == 0 and text.startswith(".")):
            raise ValueError(f"{text!r} is not a path such as section.field or list[0].field")
        name, index, quoted = matched.groups()
        parts.append(name if name is not None else int(index) if index is not None else json.loads(quoted))
        at = matched.end()
    if not parts:
        raise ValueError("the path is empty")
    return tuple(parts)


def child(data: Any, part: str | int) -> Any:
    """Returns the value of a key, or of an index from 0; ABSENT if there is none."""
    if isinstance(data, dict):
        return data.get(part, ABSENT)
    if isinstance(data, list) and isinstance(part, int) and 0 <= part < len(data):
        return data[part]
    return ABSENT


def value_at(data: Any, path: Path) -> Any:
    """Returns the value at a path in `data`; ABSENT if there is none."""
    for part in path:
        data = child(data, part)
    return data
