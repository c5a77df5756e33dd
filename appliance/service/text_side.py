"""The part of a checkpoint that a front end needs to exchange text with its engine."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from appliance.base.errors import ApplianceError
from appliance.checkpoint.read import read_model_facts
from appliance.engine.messages import Vocabulary
from appliance.plan.types import SCRIPTED, EnginePlan, ModelPlan
from appliance.text.loading import load_other, load_tokenizer
from appliance.text.tokenizer import Tokenizer


class _ScriptEnd(msgspec.Struct):
    """The one field of engine.scripted.Script that is needed here, read without importing an engine."""

    eos: int = 0


@dataclass(frozen=True, slots=True)
class TextSide:
    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]

    def vocabulary(self) -> Vocabulary:
        """Returns the vocabulary, which an engine needs before its first constraint.

        Raises TokenizerError where the bytes of tokens are not known; such plans have no structured output.
        """
        return Vocabulary(tokenizer=self.tokenizer.library.to_str(), eos_token_ids=self.eos_token_ids)


def load_text_side(plan: EnginePlan, cache: Path | None) -> TextSide:
    """`cache` keeps converted tokenizers. Raises ApplianceError when the plan has no tokenizer or it cannot be read."""
    if plan.model.format == SCRIPTED:
        script = msgspec.json.decode(Path(plan.model.path).read_bytes(), type=_ScriptEnd)
        return TextSide(_tokenizer(plan.model, None), (script.eos,))
    if plan.model.skip_tokenizer:
        raise ApplianceError(
            "a server without a tokenizer is not in this version", hint="set model.skip_tokenizer: false"
        )
    form = "dummy" if plan.model.format == "custom" else plan.model.format  # no code of the engine's runs here
    facts = read_model_facts(Path(plan.model.path), cache, form, plan.model.config)
    return TextSide(_tokenizer(plan.model, cache), facts.tokenizer.eos_token_ids)


def _tokenizer(plan: ModelPlan, cache: Path | None) -> Tokenizer:
    path = Path(plan.tokenizer_path)
    if plan.tokenizer_mode == "fast":
        return load_tokenizer(path, cache)
    return load_other(path, plan.tokenizer_mode, plan.tokenizer_cls, cache)
