"""Checkpoints with other media: the text part answers as transformers' class of the whole does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from appliance.checkpoint.read import read_model_facts
from appliance.kernels.binding import load_kernel_set
from tests.models.tiny import FAMILIES, VOCAB_SIZE, randomize
from tests.parity.harness import Driver, bind, execution_of

PROMPT = [int(token) for token in np.random.default_rng(4).integers(3, VOCAB_SIZE, 19)]
_VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("Gemma3", {"vision_config": _VISION}),
    "gemma4": ("Gemma4", {"vision_config": None, "audio_config": None}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_text_part_answers_alone(name: str, tmp_path: Path) -> None:
    stem, media = WHOLE[name]
    config = getattr(transformers, f"{stem}Config")(text_config=FAMILIES[name].config().to_dict(), **media)
    config.tie_word_embeddings = True
    torch.manual_seed(7)
    model = getattr(transformers, f"{stem}ForConditionalGeneration")(config).float().eval()
    randomize(model)
    model.save_pretrained(tmp_path)
    facts, bounds = read_model_facts(tmp_path), execution_of(max_model_len=64)
    assert facts.architecture == f"{stem}ForConditionalGeneration"
    driver = Driver(bind(facts, load_kernel_set("reference"), execution=bounds), bounds)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([PROMPT])).logits[0].numpy()
    np.testing.assert_allclose(driver.all_logits(PROMPT), expected, rtol=2e-4, atol=2e-4)
