"""Requests whose prompts are embeddings."""

import msgspec
import numpy as np

from appliance.engine.messages import GenerateRequest
from appliance.engine.prompt_embeds import PromptEmbeds


def embeds_of(rows: np.ndarray) -> PromptEmbeds:
    return PromptEmbeds("f32", rows.shape[1], np.ascontiguousarray(rows, np.float32).tobytes())


def given(request: GenerateRequest, table: np.ndarray, count: int | None = None) -> GenerateRequest:
    """Returns a request with rows of a table in place of the ids of its prompt, or of the first `count` of them."""
    prompt = request.prompt_token_ids
    count = len(prompt) if count is None else min(count, len(prompt))
    ids, rows = [0] * count + prompt[count:], table[prompt[:count]]
    return msgspec.structs.replace(request, prompt_token_ids=ids, prompt_embeds=embeds_of(rows))
