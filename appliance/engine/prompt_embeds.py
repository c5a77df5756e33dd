"""Embeddings that a prompt has in place of token ids, as they are sent. `given_embeds` reads their numbers."""

from typing import Literal

import msgspec

EmbedsType = Literal["f32", "f16", "bf16"]


class PromptEmbeds(msgspec.Struct, frozen=True, array_like=True):
    """The embeddings of a prompt's first tokens, row by row: `data` has rows of `width` numbers, little-endian."""

    dtype: EmbedsType
    width: int
    data: bytes

    @property
    def row_bytes(self) -> int:
        return self.width * (4 if self.dtype == "f32" else 2)

    @property
    def is_whole(self) -> bool:
        """Says whether there is at least one row, and no part of one."""
        return self.width > 0 and len(self.data) > 0 and len(self.data) % self.row_bytes == 0

    def last(self, count: int) -> "PromptEmbeds":
        """Returns its last rows, `count` at most."""
        start = max(0, len(self) - count) * self.row_bytes
        return self if start == 0 else PromptEmbeds(self.dtype, self.width, self.data[start:])

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.data) // self.row_bytes
