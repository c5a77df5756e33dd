"""The token ids of a draft model, where they are not those of the model that it drafts for."""

from collections.abc import Sequence

import msgspec
import numpy as np

from appliance.engine.messages import SamplingParams
from appliance.engine.rows import Int32

NO_ID = -1


class VocabularyMap:
    """Translates ids both ways; NO_ID where the other vocabulary has no such token. Both arrays are int32: to_draft
    [ids of the model], to_target [ids of the draft model]."""

    def __init__(self, to_draft: Int32, to_target: Int32) -> None:
        self.to_draft = to_draft
        self.to_target = to_target

    @classmethod
    def same(cls, num_target: int, num_draft: int) -> "VocabularyMap":
        """Makes the map of one vocabulary, of which either model may have more rows than the other."""
        ids = np.arange(min(num_target, num_draft), dtype=np.int32)
        return cls(_padded(ids, num_target), _padded(ids, num_draft))

    @classmethod
    def by_text(cls, target: Sequence[str], draft: Sequence[str], num_target: int, num_draft: int) -> "VocabularyMap":
        """Makes the map of equal texts, for models with so many ids. Of tokens of one text, the first counts."""
        place = {text: at for at, text in reversed([*enumerate(draft)])}
        pairs = [(at, place[text]) for at, text in enumerate(target) if text in place]
        to_draft, to_target = np.full(num_target, NO_ID, np.int32), np.full(num_draft, NO_ID, np.int32)
        for ours, theirs in reversed(pairs):
            to_draft[ours], to_target[theirs] = theirs, ours
        return cls(to_draft, to_target)

    def translate(self, token_ids: Sequence[int]) -> list[int] | None:
        """Returns the draft model's ids; None if it lacks one of them."""
        found: list[int] = self.to_draft[np.asarray(token_ids, np.int64)].tolist()
        return None if NO_ID in found else found

    def back(self, token_ids: Int32) -> list[int]:
        """Returns the model's ids, up to the first that it lacks."""
        found: list[int] = self.to_target[token_ids].tolist()
        return found[: found.index(NO_ID)] if NO_ID in found else found

    def sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Returns the same parameters for the draft model, as far as it has the tokens. It reports nothing."""
        allowed = sampling.allowed_token_ids
        return msgspec.structs.replace(
            sampling,
            logprobs=None,
            prompt_logprobs=None,
            logits_processors=(),
            stop_token_ids=self.known(sampling.stop_token_ids),
            allowed_token_ids=None if allowed is None else self.known(allowed) or None,
            logit_bias={self._id(each): bias for each, bias in sampling.logit_bias.items() if self._id(each) >= 0},
            bad_words=tuple(words for words in map(self._known_all, sampling.bad_words) if words),
        )

    def known(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns the draft model's ids of those tokens that it has."""
        return tuple(each for each in map(self._id, token_ids) if each >= 0)

    def _known_all(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        found = self.known(token_ids)
        return found if len(found) == len(token_ids) else ()

    def _id(self, token: int) -> int:
        return int(self.to_draft[token])


def _padded(ids: Int32, count: int) -> Int32:
    found = np.full(count, NO_ID, np.int32)
    found[: len(ids)] = ids
    return found
