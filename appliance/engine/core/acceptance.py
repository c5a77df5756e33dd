"""How often drafts are accepted: moving averages by method, by the draft's strength, and by the position in it."""

from appliance.engine.step import DraftTokens

POSITIONS = 8  # of a draft, from here on all count as one
OF_REQUEST = 0.2  # the weight of the newest draft in the averages of one request,
OF_ALL = 0.02  # and in those of all requests
FIRST_DRAFTS = 10  # so many drafts of a kind count as much as what was presumed of it
DRIFT = 0.002  # towards what was presumed, for each draft that was not tried: so it is tried again some time
PRESUMED = (0.5, 0.65, 0.8, 0.9)  # of drafts that nothing is known about, by their strength

Kind = tuple[str, int]  # method and strength
Rates = list[float]  # at each position, the share of drafts accepted there of those accepted before it
OwnRates = dict[Kind, Rates]  # of one request


class AcceptanceRates:
    """The rates of all requests. A request has rates of its own, which begin with these."""

    def __init__(self) -> None:
        self._rates: OwnRates = {}
        self._counts: dict[Kind, int] = {}

    def survivals(self, draft: DraftTokens, own: OwnRates | None) -> Rates:
        """Returns the probability of each token of the draft that it and all before it are accepted."""
        kind = draft.method, draft.strength
        rates = None if own is None else own.get(kind)
        if rates is None:
            rates = self._of(kind)
        survival, found = 1.0, []
        for position in range(len(draft.token_ids)):
            survival *= rates[min(position, POSITIONS - 1)]
            found.append(survival)
        return found

    def verified(self, draft: DraftTokens, num_accepted: int, own: OwnRates) -> None:
        """Learns from a draft whose first `num_accepted` tokens were accepted, and the next one, if any, was not."""
        kind = draft.method, draft.strength
        every = self._of(kind)
        mine = own.setdefault(kind, list(every))
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        _follow(mine, draft, num_accepted, OF_REQUEST)
        _follow(every, draft, num_accepted, max(OF_ALL, 1.0 / (count + FIRST_DRAFTS)))

    def not_tried(self, draft: DraftTokens, own: OwnRates | None) -> None:
        kind = draft.method, draft.strength
        presumed = _presumed(draft.strength)
        for rates in (self._of(kind), None if own is None else own.get(kind)):
            if rates is not None:
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
