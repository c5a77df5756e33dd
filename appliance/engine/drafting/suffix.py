"""The drafter `suffix`: what most often followed the longest end of a row that stands before, as in suffix decoding.

See Oliaro et al. 2024, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications". The places of the
longest match are the node of a suffix tree; here they are found by chains, which cost the same at any length.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from appliance.engine.drafting.chains import MOST_TRIED, TokenChains, continuation, match_length
from appliance.engine.drafting.history import History, Occurrence
from appliance.engine.drafting.ngram import strength_of
from appliance.engine.step import DraftTokens

GRAM = 3  # the shortest match


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixLimits:
    """max_depth: tokens of the longest match. max_spec_factor: times the match, the longest draft. min_token_prob: a
    draft ends where its probability falls below."""

    max_depth: int = 24
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


@dataclass(slots=True)
class _Row:
    tokens: Sequence[int]
    chains: TokenChains
    num_stored: int  # tokens that are in the history already, or are none of the answer
    salt: str | None


@dataclass(frozen=True, slots=True)
class _Guess:
    tokens: list[int]
    score: float  # the tokens that are expected to be right
    matched: int


class SuffixDrafter:
    """Looks a row's last tokens up in itself, and in finished answers."""

    def __init__(self, limits: SuffixLimits, history: History) -> None:
        self._limits = limits
        self._history = history
        self._rows: dict[int, _Row] = {}

    def put(self, row: int, tokens: Sequence[int], num_prompt: int, salt: str | None) -> None:
        """Starts a row; one that was preempted comes with tokens that were stored when it was dropped."""
        self._rows[row] = _Row(tokens, TokenChains(tokens, GRAM), max(num_prompt, len(tokens)), salt)

    def drop(self, row: int) -> None:
        state = self._rows.pop(row)
        self._history.add(state.tokens[state.num_stored :], state.salt)

    def propose(self, row: int, most: int) -> DraftTokens | None:
        state = self._rows[row]
        tokens = state.tokens
        if len(tokens) < GRAM:
            return None
        own = self._guess(tokens, (Occurrence(tokens, index) for index in state.chains.places()), most)
        gram = tokens[len(tokens) - GRAM :]
        other = self._guess(tokens, self._history.places(gram, state.salt, MOST_TRIED), most)
        guess = own if other is None or (own is not None and own.score >= other.score) else other
        if guess is None or not guess.tokens:
            return None
        return DraftTokens(guess.tokens, "suffix", strength_of(guess.matched))

    def _guess(self, tokens: Sequence[int], places: Iterable[Occurrence], most: int) -> _Guess | None:
        """Returns what follows at the places of the longest match, by majority."""
        longest, best = 0, list[Occurrence]()
        for place in places:
            matched = match_length(tokens, place.index, place.tokens, GRAM, self._limits.max_depth)
            if matched > longest:
                longest, best = matched, [place]
            elif matched == longest:
                best.append(place)
        if not longest:
            return None
        most = min(most, max(1, int(self._limits.max_spec_factor * longest)))
        if len(best) == 1:
            only = best[0]
            following = list(only.tokens[only.index : only.index + most])
            if only.tokens is tokens:
                following = continuation(tokens, only.index, most)
            return _Guess(following, float(len(following)), longest)
        return _Guess(*self._majority(best, most), longest)

    def _majority(self, places: list[Occurrence], most: int) -> tuple[list[int], float]:
        """Returns the most frequent continuation, token by token, and the sum of its probabilities. Of equally frequent
        tokens, the latest one is taken."""
        drafts: list[int] = []
        score, total = 0.0, len(places)
        while len(drafts) < most:
            ahead = len(drafts)
            places = [each for each in places if each.index + ahead < len(each.tokens)]
            if not places:
                break
            counts = Counter(each.tokens[each.index + ahead] for each in places)
            token = max(counts, key=counts.__getitem__)
            probability = counts[token] / total
            if probability < self._limits.min_token_prob:
                break
            drafts.append(token)
            score += probability
            places = [each for each in places if each.tokens[each.index + ahead] == token]
        return drafts, score
