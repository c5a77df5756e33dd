"""Llama 2 and 3, Mistral, Qwen 2 and 2.5, and the families that differ from them by single switches.

Biases, windows, layers without positions and rotary scaling come from the config; a GGUF file stores query and key rows
for interleaved rotation.
"""

from collections.abc import Mapping
from typing import Final

from appliance.checkpoint.facts import ModelFacts
from appliance.layers.spec import DecoderSpec
from appliance.models.dense import Dense, dense_decoder
from appliance.models.family import Model

# By model_type.
_SWITCHES: Final[Mapping[str, Dense]] = {
    "arcee": Dense(gated=False),
    "ernie4_5": Dense(interleaved=True),
    "helium": Dense(interleaved=True),
}


def build(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    model = Model.of(facts, max_model_len)
    return dense_decoder(model, _SWITCHES.get(model.config.model_type, Dense()))
