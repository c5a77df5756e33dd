"""The times of a request, as an engine measures them."""

import msgspec


class PartSeconds(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of the engine's parts, summed over the steps in which a request ran, with whomever."""

    scheduler: float = 0.0  # taking in messages and choosing what the step runs
    forward: float = 0.0  # the call of the model; where it only starts a device's work, until that is started
    execute: float = 0.0  # all that follows the scheduler: inputs, the model, masks and sampling

    def __add__(self, other: "PartSeconds") -> "PartSeconds":
        return PartSeconds(self.scheduler + other.scheduler, self.forward + other.forward, self.execute + other.execute)


class RequestTimes(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of a request by phase; None for a phase it did not reach. A preemption counts in the phase it hit."""

    queue_s: float  # until its first step
    prefill_s: float | None = None  # from there to its first token
    decode_s: float | None = None  # from there to its end
    prefill_parts: PartSeconds | None = None  # where parts are collected
    decode_parts: PartSeconds | None = None

    @property
    def parts(self) -> PartSeconds | None:
        """The parts of the whole request."""
        if self.prefill_parts is None or self.decode_parts is None:
            return self.prefill_parts
        return self.prefill_parts + self.decode_parts
