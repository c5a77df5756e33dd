"""The numbers of embeddings that prompts have, and those of a step's tokens."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from appliance.engine.messages import GenerateRequest
from appliance.engine.prompt_embeds import EmbedsType, PromptEmbeds
from appliance.engine.step import Chunk
from appliance.engine.validation import InvalidSamplingError
from appliance.kernels.step_embeds import StepEmbeds

Float32 = npt.NDArray[np.float32]


def _of_bf16(numbers: npt.NDArray[Any]) -> Float32:
    return (numbers.astype(np.uint32) << 16).view(np.float32)


def _of_float(numbers: npt.NDArray[Any]) -> Float32:
    return np.ascontiguousarray(numbers, np.float32)


_FORMS: Final[Mapping[EmbedsType, tuple[str, Callable[[npt.NDArray[Any]], Float32]]]] = {
    "f32": ("<f4", _of_float),
    "f16": ("<f2", _of_float),
    "bf16": ("<u2", _of_bf16),
}


def rows_of(embeds: PromptEmbeds, start: int, stop: int) -> Float32:
    """Returns some of the embeddings, f32 [stop - start, width]."""
    stored, convert = _FORMS[embeds.dtype]
    numbers = np.frombuffer(embeds.data, stored, (stop - start) * embeds.width, start * embeds.row_bytes)
    return convert(numbers).reshape(-1, embeds.width)


def is_finite(embeds: PromptEmbeds) -> bool:
    return bool(np.isfinite(rows_of(embeds, 0, len(embeds))).all())


def digest_of(embeds: PromptEmbeds, start: int, stop: int) -> bytes | None:
    """Returns a SHA-256 of the embeddings that there are of tokens start to stop - 1, the same for equal numbers of any
    type; None if there are none."""
    stop = min(stop, len(embeds))
    return sha256(rows_of(embeds, start, stop).tobytes()).digest() if start < stop else None


def validate_embeds(request: GenerateRequest, width: int) -> None:
    """Raises InvalidSamplingError if a prompt's embeddings do not fit. width: that of the model; 0: it takes none."""
    embeds = request.prompt_embeds
    if embeds is None:
        return
    if embeds.width != width or not embeds.is_whole:
        allowed = f"rows of {width} numbers" if width else "absent: model.enable_prompt_embeds is not set"
        raise InvalidSamplingError("prompt_embeds", f"{len(embeds.data)} bytes of rows of {embeds.width}", allowed)
    if len(embeds) > len(request.prompt_token_ids):
        raise InvalidSamplingError("prompt_embeds", f"{len(embeds)} rows", "at most one a token of the prompt")
    if not is_finite(embeds):
        raise InvalidSamplingError("prompt_embeds", "a number", "finite")
    if request.sampling.prompt_logprobs is not None:
        raise InvalidSamplingError("prompt_logprobs", request.sampling.prompt_logprobs, "absent with prompt_embeds")


def step_embeds(chunks: Sequence[Chunk], embeds: Mapping[int, PromptEmbeds], num_tokens: int) -> StepEmbeds | None:
    """Returns those of a step's tokens, of which each chunk has its own. embeds: by row. None if no token has any."""
    row_of, parts, at, count = np.full(num_tokens, -1, np.int32), [], 0, 0
    for chunk in chunks:
        given = embeds.get(chunk.row)
        length = 0 if given is None else min(chunk.length, len(given) - chunk.start)
        if given is not None and length > 0:
            parts.append(rows_of(given, chunk.start, chunk.start + length))
            row_of[at : at + length] = np.arange(count, count + length)
            count += length
        at += chunk.length
    return StepEmbeds(np.concatenate(parts), row_of) if parts else None
