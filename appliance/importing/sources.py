"""Where other systems say that a model is, as sources of a spec."""

import re
from typing import Final

_HUB: Final = re.compile(r"^(?:https?://)?(?:hf\.co|huggingface\.co)/([\w.-]+/[\w.-]+(?::[\w.-]+)?)$")


def hub_source(name: str) -> str:
    """`owner/name[:tag]` of the hub, where a tag is a quantization or a file, as Ollama and llama.cpp have it."""
    repo, _, tag = name.partition(":")
    if not tag or tag == "latest":
        return f"hf://{repo}"
    return f"hf://{repo}/{tag}" if tag.endswith(".gguf") else f"hf://{repo}:{tag}"


def hub_address(text: str) -> str | None:
    """The source of `hf.co/owner/name[:tag]`; None for any other text."""
    found = _HUB.match(text)
    return hub_source(found[1]) if found else None


def names_repository(source: str) -> bool:
    """Returns whether a source of the hub is a whole repository, without the name of a file."""
    return re.match(r"^hf://[^/:]+/[^/:]+$", source) is not None
