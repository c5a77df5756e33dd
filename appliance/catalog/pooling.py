"""Words of models that pool: what becomes of the rows of a sequence in place of logits, and what it is for."""

from typing import Final, Literal

import msgspec

PoolingKind = Literal["cls", "last", "mean", "all"]
PoolingTask = Literal["embed", "classify", "score"]
POOLING_KINDS: Final[tuple[PoolingKind, ...]] = ("cls", "last", "mean", "all")


class PoolingChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of a sequence are pooled, and for which task.

    cls: the first token's row. last: the last token's. mean: their mean. all: the row of every token.
    label_token_ids: the classes are these tokens of a generation model, and the scores are their logits.
    """

    task: PoolingTask
    kind: PoolingKind
    label_token_ids: tuple[int, ...] = ()

    @property
    def needs_whole_prompts(self) -> bool:
        """Returns whether all tokens of a prompt must run in one step."""
        return self.kind != "last"
