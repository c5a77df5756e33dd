"""How often drafts are accepted: moving averages by method, by the draft's strength, and by the position in it."""

from dataclasses import dataclass

from appliance.engine.step import DraftTokens

POSITIONS = 8  # of a draft, from here on all count as one
OF_REQUEST = 0.2  # the weight of the newest draft in the averages of one request,
OF_ALL = 0.02  # and in those of all requests,
OF_NEW = 0.12  # where the draft is one of the first of its request: what a request begins with is learnt of them
FIRST_DRAFTS = 10  # so many drafts of a kind count as much as what was presumed of it,
FIRST_COSTLY = 4  # of a kind that costs time to draft
SHOWN_BY = 4  # drafts after which a request has shown how often its own are accepted
KEPT_PROMISE = 0.75  # a request whose first drafts are accepted less often than so much of what was presumed is unlike
MORE_TRUST, MOST_TRUST = 1, 8
DRIFT = 0.002  # towards what was presumed, for each draft that was not tried: so it is tried again some time
PRESUMED = (0.5, 0.65, 0.8, 0.9)  # of drafts that nothing is known about, by their strength

Kind = tuple[str, int]  # method and strength
Rates = list[float]  # at each position, the share of drafts accepted there of those accepted before it


@dataclass(slots=True)
class OwnRate:
    """Says how often drafts of one kind are accepted for one request. promised: the first rate that it began with.
    num_drafts: those that were verified."""

    rates: Rates
    promised: float
    num_drafts: int = 0


OwnRates = dict[Kind, OwnRate]  # of one request


class AcceptanceRates:
    """The rates of all requests. A request has rates of its own, which begin with these. costly: the method whose
    drafts take time, so that those that are not accepted must soon be known."""

    def __init__(self, costly: str | None = None) -> None:
        self._costly = costly
        self._rates: dict[Kind, Rates] = {}
        self._counts: dict[Kind, int] = {}
        self._trust: dict[Kind, int] = {}  # requests that may begin before they have shown anything

    def survivals(self, draft: DraftTokens, own: OwnRates | None) -> Rates:
        """Returns the probability of each token of the draft that it and all before it are accepted."""
        kind = draft.method, draft.strength
        mine = None if own is None else own.get(kind)
        rates = self._of(kind) if mine is None else mine.rates
        survival, found = 1.0, []
        for position in range(len(draft.token_ids)):
            survival *= rates[min(position, POSITIONS - 1)]
            found.append(survival)
        return found

    def verified(self, draft: DraftTokens, num_accepted: int, own: OwnRates) -> None:
        """Learns from a draft whose first `num_accepted` tokens were accepted, and the next one, if any, was not."""
        kind = draft.method, draft.strength
        every, is_costly = self._of(kind), draft.method == self._costly
        mine = own.setdefault(kind, OwnRate(list(every), every[0]))
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        least = OF_NEW if is_costly and mine.num_drafts < SHOWN_BY else OF_ALL
        mine.num_drafts += 1
        _follow(mine.rates, draft, num_accepted, OF_REQUEST)
        _follow(every, draft, num_accepted, max(least, 1.0 / (count + (FIRST_COSTLY if is_costly else FIRST_DRAFTS))))

        if mine.num_drafts == SHOWN_BY:
            is_kept = mine.rates[0] >= KEPT_PROMISE * mine.promised
            self._trust[kind] = min(self.trust(kind) + MORE_TRUST, MOST_TRUST) if is_kept else 1

    def has_shown(self, kind: Kind, own: OwnRates) -> bool:
        """Returns whether a request has shown how often its own drafts of a kind are accepted."""
        return kind in own and own[kind].num_drafts >= SHOWN_BY

    def trust(self, kind: Kind) -> int:
        """Returns for how many requests at once that have shown nothing these rates may be presumed: one, and more as
        requests keep what was presumed of them."""
        return self._trust.get(kind, 1)

    def not_tried(self, draft: DraftTokens, own: OwnRates | None) -> None:
        kind = draft.method, draft.strength
        presumed = _presumed(draft.strength)
        mine = None if own is None else own.get(kind)
        for rates in (self._of(kind), *(() if mine is None else (mine.rates,))):
            rates[0] += DRIFT * (presumed - rates[0])

    def _of(self, kind: Kind) -> Rates:
        rates = self._rates.get(kind)
        if rates is None:
            rates = self._rates[kind] = [_presumed(kind[1])] * POSITIONS
        return rates


def _presumed(strength: int) -> float:
    return PRESUMED[min(strength, len(PRESUMED) - 1)]


def _follow(rates: Rates, draft: DraftTokens, num_accepted: int, weight: float) -> None:
    for position in range(min(num_accepted + 1, len(draft.token_ids))):
        at = min(position, POSITIONS - 1)
        rates[at] += weight * ((position < num_accepted) - rates[at])
