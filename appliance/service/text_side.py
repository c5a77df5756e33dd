"""What a front end must know of a checkpoint to speak text with its engine."""

from dataclasses import dataclass
from pathlib import Path

from appliance.base.errors import ApplianceError
from appliance.checkpoint.folder import read_folder_facts
from appliance.checkpoint.gguf_facts import read_gguf_facts
from appliance.engine.backend import SCRIPTED
from appliance.engine.scripted import Script
from appliance.plan.types import EnginePlan, ModelPlan
from appliance.text.loading import load_tokenizer
from appliance.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextSide:
    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]


def load_text_side(plan: EnginePlan, cache: Path | None) -> TextSide:
    """`cache` keeps converted tokenizers. Raises ApplianceError when the plan has no tokenizer or it cannot be read."""
    if plan.kernels.kernel_set == SCRIPTED:
        script = Script.read(Path(plan.model.path))
        return TextSide(load_tokenizer(Path(plan.model.tokenizer_path)), (script.eos,))
    if plan.model.skip_tokenizer:
        raise ApplianceError(
            "a server without a tokenizer is not in this version", hint="set model.skip_tokenizer: false"
        )
    return TextSide(load_tokenizer(Path(plan.model.tokenizer_path), cache), eos_token_ids(plan.model))


def eos_token_ids(model: ModelPlan) -> tuple[int, ...]:
    """Read from the checkpoint's headers."""
    path = Path(model.path)
    facts = read_gguf_facts(path) if model.format == "gguf" else read_folder_facts(path)
    return facts.tokenizer.eos_token_ids
