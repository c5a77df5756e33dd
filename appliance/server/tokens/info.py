"""GET /tokenizer_info: the tokenizer's configuration, where the plan shows it."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from appliance.server.state import ServerState


async def tokenizer_info(state: ServerState, request: Request) -> Response:
    """The vocabulary's size, the special tokens and the chat template in use."""
    tokenizer, model = state.tokenizer, state.plan.model
    added: dict[str, Any] = {
        str(token_id): {"content": content, "special": token_id in tokenizer.special_ids}
        for token_id, content in sorted(tokenizer.added_tokens.items())
    }
    body = {
        "tokenizer_class": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": model.max_model_len,
        "chat_template": model.chat_template,
        "added_tokens_decoder": added,
        **tokenizer.identity.special_tokens,
    }
    return Response(orjson.dumps(body), media_type="application/json")
