"""What of earlier prompts a replica is likely to have in its prefix cache."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from appliance.service.requests import TextRequest

CHUNK_TOKENS: Final = 64  # a chunk is named at once; a shorter common beginning is worth no detour
_FEW_PROMPTS: Final = 8  # that begin with a chunk: the turns of a conversation, and not a text that all begin with
_MAX_CHUNKS: Final = 1024  # of a prompt that are named: those behind differ hardly ever where these are alike

Chain = Sequence[int]
"""Names of the whole chunks at a prompt's beginning: each a hash of its tokens and of the name before it."""


def chain_of(request: TextRequest) -> Chain:
    """Names the chunks of a prompt. Prompts for other adapters, or with another salt, have no name in common;
    nor do those of other embeddings."""
    tokens, chain = request.prompt_token_ids, []
    embeds = request.prompt_embeds
    given = None if embeds is None else (embeds.dtype, embeds.data)
    name = hash((request.adapter, request.adapter_scale, request.stacked, request.cache_salt, given))
    for begin in range(0, min(len(tokens) // CHUNK_TOKENS, _MAX_CHUNKS) * CHUNK_TOKENS, CHUNK_TOKENS):
        name = hash((name, *tokens[begin : begin + CHUNK_TOKENS]))
        chain.append(name)
    return chain


@dataclass(frozen=True, slots=True)
class Known:
    """num_tokens: at a prompt's beginning, likely to be cached. worth: the same, in which those that many prompts begin
    with count less: to compute them in one more replica costs once, and serves all that come."""

    num_tokens: int
    worth: int


class KnownPrefixes:
    """The chunks that were sent to one replica, those of longest ago forgotten, as its cache forgets them."""

    def __init__(self, max_tokens: int) -> None:
        """max_tokens: those that the replica's cache holds."""
        self._max_chunks = max(1, max_tokens // CHUNK_TOKENS)
        self._uses: OrderedDict[int, int] = OrderedDict()  # by name: how many prompts had the chunk

    def find(self, chain: Chain) -> Known:
        """Returns what at the beginning of a prompt is likely to be cached."""
        uses = [self._uses[name] for name in takewhile(self._uses.__contains__, chain)]
        worth = sum(CHUNK_TOKENS * min(1.0, _FEW_PROMPTS / each) for each in uses)
        return Known(len(uses) * CHUNK_TOKENS, round(worth))

    def note(self, chain: Chain) -> None:
        """A prompt was sent. Its end is forgotten before its beginning."""
        for name in reversed(chain):
            self._uses[name] = self._uses.get(name, 0) + 1
            self._uses.move_to_end(name)
        while len(self._uses) > self._max_chunks:
            self._uses.popitem(last=False)

    def clear(self) -> None:
        """The cache is empty."""
        self._uses.clear()
