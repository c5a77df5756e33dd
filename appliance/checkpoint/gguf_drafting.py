"""The names of GGUF tensors in layers after the last one, which draft tokens for speculation."""

import re
from typing import Final

from appliance.checkpoint.gguf_names import hugging_face_name, layer_of

_OF_LAYER: Final = {
    name: f"model.layers.{{n}}.{module}"
    for name, module in (
        ("eh_proj", "eh_proj"),
        ("enorm", "enorm"),
        ("hnorm", "hnorm"),
        ("embed_tokens", "embed_tokens"),
        ("shared_head_norm", "shared_head.norm"),
        ("shared_head_head", "shared_head.head"),
    )
}
_OF_QWEN: Final = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "shared_head_norm": "mtp.norm",
}
_QWEN: Final = ("qwen3next", "qwen35", "qwen35moe")
_NAMES: Final = {**dict.fromkeys(("deepseek2", "glm4moe"), _OF_LAYER), **dict.fromkeys(_QWEN, _OF_QWEN)}
_NEXTN: Final = re.compile(r"blk\.\d+\.nextn\.(\w+)\.(weight|bias)")


def drafting_name(architecture: str, stored: str, num_layers: int) -> str | None:
    """Returns the Hugging Face name of a tensor of a layer that is not one of the model's `num_layers`; None if no head
    of the family reads it."""
    names, layer = _NAMES.get(architecture), layer_of(stored)
    if names is None or layer is None:
        return None
    if (match := _NEXTN.fullmatch(stored)) is not None:
        name = names.get(match[1])
        return None if name is None else f"{name.replace('{n}', str(layer))}.{match[2]}"
    found = hugging_face_name(architecture, stored)
    if found is None or architecture not in _QWEN:
        return found
    return found.replace(f"model.layers.{layer}.", f"mtp.layers.{layer - num_layers}.")
