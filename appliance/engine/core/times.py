"""Moving averages of measured times. Other work on the machine can only delay, so they follow quick ones sooner."""

WEIGHT_OF_SLOWER = 0.25  # of the newest time in a moving average
WEIGHT_OF_QUICKER = 0.5
MOST_SLOWER = 2.0  # what took longer than this many times the average counts as this many times


class TimesBySize:
    """The seconds of work by its size: one average for each power of two above it."""

    def __init__(self) -> None:
        self._by_class: dict[int, tuple[float, float]] = {}  # (size, seconds)

    def learn(self, size: int, seconds: float) -> None:
        at = size.bit_length()
        mean, average = self._by_class.get(at, (size, None))
        self._by_class[at] = mean + WEIGHT_OF_SLOWER * (size - mean), follow(average, seconds)

    def seconds(self, size: int) -> float:
        """Returns the seconds of work of this size: linear between measured sizes, constant above the largest; 0 if
        nothing was measured."""
        below, below_s = 0.0, 0.0
        for mean, seconds in sorted(self._by_class.values()):
            if size <= mean:
                share = (size - below) / (mean - below)
                return below_s + share * (seconds - below_s)
            below, below_s = mean, seconds
        return below_s


def follow(average: float | None, value: float) -> float:
    """Returns the average after another value; a first value is the average."""
    if not average:
        return value
    weight = WEIGHT_OF_SLOWER if value > average else WEIGHT_OF_QUICKER
    return average + weight * (min(value, average * MOST_SLOWER) - average)
