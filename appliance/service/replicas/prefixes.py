"""What of earlier prompts a replica is likely to have in its prefix cache."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from appliance.service.requests import TextRequest

CHUNK_TOKENS: Final = 64  # a chunk is named at once; a shorter common beginning is worth no detour
_MAX_CHUNKS: Final = 1024  # of a prompt that are named: those behind differ hardly ever where these are alike

Chain = Sequence[int]
"""Names of the whole chunks at a prompt's beginning: each a hash of its tokens and of the name before it."""


def chain_of(request: TextRequest) -> Chain:
    """Names the chunks of a prompt. Prompts for other adapters, or with another salt, have no name in common."""
    tokens, chain = request.prompt_token_ids, []
    name = hash((request.adapter, request.adapter_scale, request.stacked, request.cache_salt))
    for begin in range(0, min(len(tokens) // CHUNK_TOKENS, _MAX_CHUNKS) * CHUNK_TOKENS, CHUNK_TOKENS):
        name = hash((name, *tokens[begin : begin + CHUNK_TOKENS]))
        chain.append(name)
    return chain


class KnownPrefixes:
    """The chunks that were sent to one replica, those of longest ago forgotten, as its cache forgets them."""

    def __init__(self, max_tokens: int) -> None:
        """max_tokens: those that the replica's cache holds."""
        self._max_chunks = max(1, max_tokens // CHUNK_TOKENS)
        self._names: OrderedDict[int, None] = OrderedDict()

    def num_tokens(self, chain: Chain) -> int:
        """Returns how many tokens at the beginning of a prompt are likely to be cached."""
        return sum(1 for _ in takewhile(self._names.__contains__, chain)) * CHUNK_TOKENS

    def note(self, chain: Chain) -> None:
        """A prompt was sent. Its end is forgotten before its beginning."""
        for name in reversed(chain):
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > self._max_chunks:
            self._names.popitem(last=False)

    def clear(self) -> None:
        """The cache is empty."""
        self._names.clear()
