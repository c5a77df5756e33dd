"""Embeddings that a request has in place of a prompt: `prompt_embeds`, one tensor a prompt."""

import asyncio
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from appliance.checkpoint.one_tensor import OneTensor, OneTensorError, read_tensor
from appliance.checkpoint.storage import stored_bytes
from appliance.engine.given_embeds import is_finite
from appliance.engine.prompt_embeds import EmbedsType, PromptEmbeds
from appliance.engine.wire import MAX_MESSAGE_BYTES
from appliance.plan.types import ModelPlan
from appliance.requests.errors import invalid
from appliance.requests.fields import CompletionFields

FIELD: Final = "prompt_embeds"
MOST_BYTES: Final = MAX_MESSAGE_BYTES - (4 << 20)  # of one prompt: it goes to the engine in one message


class EmbedsReader:
    """Reads the embeddings of requests, for one model."""

    def __init__(self, model: ModelPlan) -> None:
        self._model = model

    async def read(self, fields: CompletionFields) -> list[PromptEmbeds]:
        """Returns those of each prompt that has some. Raises ApiError 400. It reads in a thread: a text of a few
        characters can repeat a row many times."""
        given = fields.prompt_embeds
        if not given:
            return []
        self.check_fields(fields)
        texts = {FIELD: given} if isinstance(given, str) else {f"{FIELD}[{at}]": each for at, each in enumerate(given)}
        return await asyncio.to_thread(self._decoded, texts)

    def check_fields(self, fields: CompletionFields) -> None:
        """Raises ApiError 400 where the model takes no embeddings, or a field asks for what they do not have."""
        if not self._model.takes_embeds:
            message = "this server takes no prompt embeddings (model.enable_prompt_embeds)"
            raise invalid(FIELD, message, "not_allowed")
        for name, lacks in (
            ("echo", "has no text that could be echoed"),
            ("suffix", "has no text that a suffix could follow"),
        ):
            if getattr(fields, name):
                raise invalid(name, f"a prompt of embeddings {lacks}", "invalid_value")
        if fields.prompt_logprobs is not None:
            message = "a prompt of embeddings has no tokens whose log-probabilities there could be"
            raise invalid("prompt_logprobs", message, "invalid_value")

    def _decoded(self, texts: Mapping[str, str]) -> list[PromptEmbeds]:
        """Returns those of texts in base64, by where these are. Raises ApiError 400, also where all of them together
        are more than the texts can bring and one prompt may have."""
        room, found = max(MOST_BYTES, sum(map(len, texts.values()))), []
        for where, text in texts.items():
            tensor = _tensor(text, where)
            tokens, width = self._checked(tensor.shape, where)
            room -= stored_bytes(tensor.dtype, (tokens, width))
            if room < 0:
                message = f"{where}: rows that are repeated have more than {MOST_BYTES >> 20} MiB in all prompts"
                raise invalid(where, message, "invalid_value")
            rows = tensor._replace(shape=(tokens, width), strides=tensor.strides[-2:]).rows()
            found.append(self._finite(PromptEmbeds(tensor.dtype, width, rows), where))
        return found

    def of_array(self, array: np.ndarray, where: str) -> PromptEmbeds:
        """Returns those of an array of floats. Raises ApiError 400."""
        if array.dtype.kind != "f":
            raise invalid(where, f"{where}: its numbers are {array.dtype}; floats are expected", "invalid_value")
        shape = self._checked(array.shape, where)
        rows = np.ascontiguousarray(array, np.dtype("<f2") if array.dtype == np.float16 else np.dtype("<f4"))
        dtype: EmbedsType = "f16" if rows.dtype == np.float16 else "f32"
        return self._finite(PromptEmbeds(dtype, shape[1], rows.tobytes()), where)

    def _checked(self, shape: Sequence[int], where: str) -> tuple[int, int]:
        """Returns the shape without a first axis of 1. Raises ApiError 400 if it is not (tokens, width)."""
        width = self._model.embeds_width
        rows = tuple(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape)
        if len(rows) != 2 or rows[1] != width or not rows[0]:
            message = f"{where}: its shape is {list(shape)}; it must be [tokens, {width}], with at least one token"
            raise invalid(where, message, "invalid_value")
        if rows[0] * width > (most := MOST_BYTES // 4):
            message = f"{where} has {rows[0]} tokens of {width} numbers; {most} numbers are allowed"
            raise invalid(where, message, "invalid_value")
        return rows[0], rows[1]

    def _finite(self, embeds: PromptEmbeds, where: str) -> PromptEmbeds:
        """Returns the embeddings. Raises ApiError 400 if some number is not finite."""
        if not is_finite(embeds):
            raise invalid(where, f"{where}: a number is not finite", "invalid_value")
        return embeds


def _tensor(text: str, where: str) -> OneTensor:
    try:
        return read_tensor(b64decode(text, validate=True))
    except OneTensorError as error:
        raise invalid(where, f"{where}: {error}", "invalid_value") from error
    except ValueError as error:
        raise invalid(where, f"{where}: it is no base64", "invalid_value") from error
