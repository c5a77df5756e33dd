"""Logits processors: Python objects of the operator, named by the plan for every request, or by a request for itself.
They run between the model and the sampler.

A processor's change becomes a logit bias of its row, so that raw log-probabilities stay the model's.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.base.bounded import BoundedCalls, StoppedError, TookTooLongError
from appliance.base.plugins import PluginError, load_plugin
from appliance.engine.inputs import LogitRows
from appliance.engine.messages import ErrorKind, GenerateRequest, ProcessorCall
from appliance.engine.refusal import Refusal
from appliance.engine.rows import Rows
from appliance.engine.step import NewRow, RowError
from appliance.kernels.logits import Logits
from appliance.kernels.sampling import NO_TOKEN, SamplingBatch

Row = npt.NDArray[np.float32]  # the logits [V] of one row
Bias = tuple[npt.NDArray[np.int32], Row]  # token ids, and the values added to their logits
FIELD: Final = "decoding.logits_processors"
CALL_TIMEOUT_S: Final = 5.0
_BATCH_FORM: Final = ("apply", "update_state")  # the methods by which vLLM's class is known

Processor = Callable[[list[int], list[int], Row], Any]  # (prompt, output, logits) -> logits


class ProcessorError(Exception):
    """A processor cannot be imported, made or called. The message says which, and why."""


def make_processor(call: ProcessorCall) -> Processor:
    """Imports a processor and, if the call is a constructor, constructs it.

    The object is called as f(output, logits) or f(prompt, output, logits): lists of token ids, and float32 [V] that it
    may change; it returns logits [V]. Raises ProcessorError.
    """
    try:
        found = load_plugin(call.qualname, "logits_processors")
        if call.is_constructor:
            found = found(*call.args, **call.kwargs)
        num_arguments = _num_arguments(found)
    except PluginError as error:
        raise ProcessorError(str(error)) from error
    except Exception as error:
        raise ProcessorError(f"{call.qualname}: {type(error).__name__}: {error}") from error
    if num_arguments == 2:
        return lambda prompt, output, logits: found(output, logits)
    if num_arguments == 3:
        processor: Processor = found
        return processor
    raise ProcessorError(
        f"{call.qualname} takes {num_arguments} arguments; (output, logits) or (prompt, output, logits)"
    )


def _num_arguments(found: Any) -> int:
    parameters = inspect.signature(found).parameters.values()
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)


def planned_calls(names: Sequence[str]) -> tuple[ProcessorCall, ...]:
    """Returns the calls of the processors that the plan names for every request; each is made once, to know that it can
    be. Raises PluginError."""
    return tuple(map(_planned_call, names))


def _planned_call(name: str) -> ProcessorCall:
    found = load_plugin(name, FIELD)
    if isinstance(found, type) and all(hasattr(found, method) for method in _BATCH_FORM):
        hint = "write a class without arguments whose objects are called as f(output, logits), for one sequence"
        raise PluginError(f"{FIELD}: {name} is a processor of whole batches, as vLLM has them", hint=hint)
    call = ProcessorCall(qualname=name.replace(":", "."), is_constructor=isinstance(found, type))
    try:
        make_processor(call)
    except ProcessorError as error:
        raise PluginError(f"{FIELD}: {error}", hint="f(output, logits) or f(prompt, output, logits)") from error
    return call


@dataclass(slots=True)
class _Named:
    name: str
    run: Processor


class RowProcessors:
    """The processors of the rows that have any. Each row has its own; a preempted row gets new ones.

    planned: those of every request, before its own. Whatever a processor does takes `timeout_s` at most.
    """

    def __init__(self, rows: Rows, planned: tuple[ProcessorCall, ...] = (), timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._rows = rows
        self._planned = planned
        self._bounded = BoundedCalls(timeout_s)
        self._by_row: dict[int, list[_Named]] = {}

    def admit(self, message: GenerateRequest) -> GenerateRequest:
        """Returns the request with the plan's processors before its own.

        Raises Refusal for one of its own that cannot be made, so that it does not fail within a step.
        """
        sampling = message.sampling
        try:
            for call in sampling.logits_processors:
                self._make(call)
        except ProcessorError as error:
            raise Refusal(ErrorKind.INVALID, "logits_processors", f"logits_processors: {error}") from error
        if not self._planned:
            return message
        every = msgspec.structs.replace(sampling, logits_processors=self._planned + sampling.logits_processors)
        return msgspec.structs.replace(message, sampling=every)

    def put(self, new: NewRow) -> None:
        """Makes the row's processors. Each was made once before the request was accepted; a failure now fails the row.

        It fails when the processor is first called, so that the error has its place in a step.
        """
        if new.sampling.logits_processors:
            self._by_row[new.row] = [self._named(call) for call in new.sampling.logits_processors]

    def drop(self, row: int) -> None:
        self._by_row.pop(row, None)

    def apply(
        self, wanted: LogitRows, batch: SamplingBatch, logits: Logits, left_out: Collection[int] = ()
    ) -> tuple[SamplingBatch, dict[int, RowError]]:
        """Returns the batch with the processors' biases, and the errors by row of logits for which one failed. It does
        not change the logits, and skips the rows in `left_out`."""
        errors: dict[int, RowError] = {}
        if not self._by_row:
            return batch, errors
        changes: dict[int, Bias] = {}
        lengths = wanted.lengths(self._rows.num_tokens)
        for at, row in self._sampled(wanted):
            if row in left_out:
                continue
            try:
                before = logits.row(at)
                changes[at] = _difference(before, self._process(row, int(lengths[at]), before))
            except ProcessorError as error:
                errors[at] = RowError(ErrorKind.INTERNAL, f"a logits processor failed: {error}")
        return _with_biases(batch, changes), errors

    def _sampled(self, wanted: LogitRows) -> Iterator[tuple[int, int]]:
        for at, (row, given) in enumerate(zip(wanted.rows.tolist(), wanted.given.tolist(), strict=True)):
            if given == NO_TOKEN and row in self._by_row:
                yield at, row

    def _process(self, row: int, end: int, logits: Row) -> Row:
        given = len(self._rows.embeds.get(row, ()))  # embeddings, which are no tokens
        start = int(self._rows.num_prompt[row]) - given
        tokens: list[int] = self._rows.token_ids[row, given:end].tolist()
        for each in self._by_row[row]:
            try:
                answer = self._bounded.run(each.name, partial(_answer, each.run, tokens, start, logits.copy()))
            except (TookTooLongError, StoppedError) as error:
                raise ProcessorError(str(error)) from error
            except Exception as error:
                raise ProcessorError(f"{each.name}: {type(error).__name__}: {error}") from error
            if answer.shape != logits.shape:
                raise ProcessorError(f"{each.name} answered the shape {answer.shape}; logits are {logits.shape}")
            largest = answer.max()  # NaN where any is
            if not largest < np.inf:
                raise ProcessorError(f"{each.name} answered logits that are NaN or infinite")
            if largest == -np.inf:
                raise ProcessorError(f"{each.name} excludes every token")
            logits = answer
        return logits

    def _named(self, call: ProcessorCall) -> _Named:
        try:
            return _Named(call.qualname, self._make(call))
        except ProcessorError as error:
            reason = str(error)

        def fail(prompt: list[int], output: list[int], logits: Row) -> Row:
            raise RuntimeError(reason)

        return _Named(call.qualname, fail)

    def _make(self, call: ProcessorCall) -> Processor:
        try:
            return self._bounded.run(call.qualname, partial(make_processor, call))
        except (TookTooLongError, StoppedError) as error:
            raise ProcessorError(str(error)) from error


def _answer(run: Processor, tokens: list[int], start: int, logits: Row) -> Row:
    answer = run(tokens[:start], tokens[start:], logits)
    if answer is None:
        raise TypeError("it returned None, and no logits")
    return np.asarray(answer, np.float32)


def _difference(before: Row, after: Row) -> Bias:
    """Returns the ids of changed logits, and what to add to them. A logit of -inf cannot be changed by adding."""
    ids = np.flatnonzero((before != after) & np.isfinite(before)).astype(np.int32)
    return ids, after[ids] - before[ids]


def _with_biases(batch: SamplingBatch, changes: dict[int, Bias]) -> SamplingBatch:
    rows: list[Bias] = []
    start = np.zeros_like(batch.bias_start)
    for at in range(batch.num_rows):
        own = slice(int(batch.bias_start[at]), int(batch.bias_start[at + 1]))
        bias = batch.bias_ids[own], batch.bias_values[own]
        if at in changes:
            bias = _sum(bias, changes[at])
        rows.append(bias)
        start[at + 1] = start[at] + len(bias[0])
    ids, values = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return replace(batch, bias_start=start, bias_ids=ids, bias_values=values)


def _sum(one: Bias, other: Bias) -> Bias:
    """Adds two biases; each id is in the sum once."""
    ids, place = np.unique(np.concatenate([one[0], other[0]]), return_inverse=True)
    values = np.zeros(len(ids), np.float32)
    np.add.at(values, place, np.concatenate([one[1], other[1]]))
    return ids, values
