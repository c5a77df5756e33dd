"""Samples the rows of a step: parameters are gathered and processed, and a row that fails leaves the others alone."""

from collections.abc import Callable
from dataclasses import dataclass

from appliance.engine.faults import row_fault
from appliance.engine.inputs import BatchBuilder, LogitRows
from appliance.engine.laps import Laps
from appliance.engine.messages import ErrorKind
from appliance.engine.processors import RowProcessors
from appliance.engine.report import without_token
from appliance.engine.rows import Int32, Rows
from appliance.engine.step import RowError
from appliance.kernels.errors import ExecutableError, StepError
from appliance.kernels.interface import Executable, Feeding
from appliance.kernels.logits import Logits
from appliance.kernels.sampling import LogprobsMode, SampledBatch, SamplingBatch

_LEFT_OUT = RowError(ErrorKind.INTERNAL, "left out while another row is looked at")


class _BatchError(Exception):
    """The sampling parameters of a step cannot be gathered, because of some row."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What was sampled, with which parameters. faults: by row of logits, why there is no token, or none that counts."""

    batch: SamplingBatch
    sampled: SampledBatch
    faults: dict[int, RowError]


class RowSampler:
    """Samples from the logits of an executable."""

    def __init__(self, executable: Executable, rows: Rows, processors: RowProcessors, mode: LogprobsMode) -> None:
        self._executable = executable
        self._feeding = executable if isinstance(executable, Feeding) else None
        self._batches = BatchBuilder(rows, mode)
        self._processors = processors

    @property
    def feeds(self) -> bool:
        """The next step may be started before the tokens of this one are known here."""
        return self._feeding is not None

    def some(self, logits: Logits, rows: Int32) -> Logits:
        """Returns some rows of the logits of a step, of an executable that `feeds`."""
        assert self._feeding is not None, "it feeds"
        return self._feeding.some(logits, rows)

    def sample(
        self,
        wanted: LogitRows,
        logits: Logits,
        failed: dict[int, RowError],
        laps: Laps,
        meanwhile: Callable[[], None] | None = None,
    ) -> Samples:
        """Samples. Failed rows have neutral parameters in the batch; the others' results do not depend on them.

        meanwhile: what is done between the begin of sampling and its end, of an executable that `feeds`.
        """
        try:
            return self._try(wanted, logits, failed, laps, meanwhile)
        except (StepError, _BatchError) as error:
            rows = dict.fromkeys(wanted.rows.tolist(), _LEFT_OUT)
            found: dict[int, RowError] = {}
            for row in rows.keys() - failed.keys():
                others = {other: reason for other, reason in rows.items() if other != row}
                try:
                    self._try(wanted, logits, others, laps)
                except (StepError, _BatchError) as own:
                    found[row] = row_fault("it was sampled", own)
            if not found:
                raise error
            failed.update(found)
            return self._try(wanted, logits, failed, laps)

    def _try(
        self,
        wanted: LogitRows,
        logits: Logits,
        failed: dict[int, RowError],
        laps: Laps,
        meanwhile: Callable[[], None] | None = None,
    ) -> Samples:
        try:
            batch = self._batches.build(wanted, failed)
            batch, faults = self._processors.apply(wanted, batch, logits, failed)
        except ExecutableError:  # no row is to blame
            raise
        except Exception as error:
            raise _BatchError("the parameters of some row cannot be gathered") from error
        laps.lap("prepare sampling")
        sampled = self._sampled(logits, batch, meanwhile)
        return Samples(batch, sampled, without_token(wanted, sampled, logits) | faults)

    def _sampled(self, logits: Logits, batch: SamplingBatch, meanwhile: Callable[[], None] | None) -> SampledBatch:
        if self._feeding is None or meanwhile is None:
            return self._executable.sample(logits, batch)
        pending = self._feeding.begin_sampling(logits, batch)
        meanwhile()
        return pending.result()
