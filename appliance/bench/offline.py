"""Drives an engine in this process, without HTTP: `latency` (batch after batch) and `throughput` (all at once)."""

import time
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from appliance.base.errors import ApplianceError
from appliance.base.hashing import sha256_json
from appliance.bench.online import Tick
from appliance.bench.record import MeasuredRequest
from appliance.bench.scenario import Scenario
from appliance.bench.workload import WorkItem, make_workload
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams, SequenceOutput
from appliance.engine.profile import EngineProfile


def run_profiled(
    scenario: Scenario, engine: InprocEngine, eos_token_ids: tuple[int, ...], vocab_size: int, tick: Tick
) -> tuple[list[list[MeasuredRequest]], EngineProfile]:
    """Runs the scenario as run_offline does, and profiles all rounds."""
    _warm_up(scenario, engine, eos_token_ids, vocab_size)
    engine.call("start_profile")
    rounds = run_offline(msgspec.structs.replace(scenario, num_warmups=0), engine, eos_token_ids, vocab_size, tick)
    return rounds, msgspec.msgpack.decode(engine.call("stop_profile"), type=EngineProfile)


def run_offline(
    scenario: Scenario, engine: InprocEngine, eos_token_ids: tuple[int, ...], vocab_size: int, tick: Tick
) -> list[list[MeasuredRequest]]:
    """One list of records a round. Raises ApplianceError when the workload has text prompts (an engine takes ids)."""
    _warm_up(scenario, engine, eos_token_ids, vocab_size)
    rounds = []
    for index in range(scenario.repeats):
        items = make_workload(scenario, vocab_size, index)
        records: list[MeasuredRequest] = []
        for number, batch in enumerate(_batches(scenario, items)):
            records += _run_batch(scenario, engine, eos_token_ids, batch, f"{index}/{number}")
            tick(len(records), len(items))
        rounds.append(records)
    return rounds


def run_closed(
    scenario: Scenario, engine: InprocEngine, eos_token_ids: tuple[int, ...], vocab_size: int
) -> list[MeasuredRequest]:
    """One round with at most `scenario.max_concurrency` requests open, as clients that wait for their answers."""
    _warm_up(scenario, engine, eos_token_ids, vocab_size)
    items = make_workload(scenario, vocab_size, 0)
    return _run_batch(scenario, engine, eos_token_ids, items, "closed", scenario.max_concurrency)


def _warm_up(scenario: Scenario, engine: InprocEngine, eos_token_ids: tuple[int, ...], vocab_size: int) -> None:
    warmups = make_workload(scenario, vocab_size, round_index=-1)[: scenario.num_warmups]
    _run_batch(scenario, engine, eos_token_ids, warmups, "warmup")


def _batches(scenario: Scenario, items: Sequence[WorkItem]) -> Iterator[Sequence[WorkItem]]:
    size = scenario.batch_size if scenario.kind == "latency" else max(len(items), 1)
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _run_batch(
    scenario: Scenario,
    engine: InprocEngine,
    eos_token_ids: tuple[int, ...],
    items: Sequence[WorkItem],
    label: str,
    most: int | None = None,
) -> list[MeasuredRequest]:
    """most: requests that are open at once; None is all."""
    records: dict[str, MeasuredRequest] = {}
    answers: dict[str, list[int]] = {}
    waiting = deque((f"bench/{label}/{i}", item) for i, item in enumerate(items))
    open_keys: set[str] = set()
    while waiting or open_keys:
        now = time.perf_counter()
        while waiting and (most is None or len(open_keys) < most):
            key, item = waiting.popleft()
            records[key] = MeasuredRequest(started=now)
            answers[key] = []
            open_keys.add(key)
            engine.send(_request(key, item, scenario, eos_token_ids))
        events = engine.receive()
        if not events and not engine.has_work:
            raise ApplianceError(f"the engine is idle with {len(open_keys)} requests unanswered")
        now = time.perf_counter()
        for event in events:
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                answers[output.request_id] += output.token_ids
                if _note(records[output.request_id], output, now):
                    open_keys.discard(output.request_id)
    for (key, record), item in zip(records.items(), items, strict=True):
        record.input_tokens = len(item.prompt)
        record.answer_sha256 = sha256_json(answers[key]) if answers[key] else None
    return list(records.values())


def _note(record: MeasuredRequest, output: SequenceOutput, now: float) -> bool:
    """Adds an output to its record; whether the request ended with it."""
    if output.token_ids:
        record.token_times.append(now)
        record.token_counts.append(len(output.token_ids))
        record.output_tokens += len(output.token_ids)
    record.cached_tokens = max(record.cached_tokens, output.num_cached_tokens)
    if output.drafts is not None:  # so far
        record.num_drafts, record.accepted_tokens = output.drafts.drafts, output.drafts.accepted_tokens
    if output.finish_reason is None:
        return False
    record.finished = now
    record.error = output.error
    return True


def _request(key: str, item: WorkItem, scenario: Scenario, eos_token_ids: tuple[int, ...]) -> GenerateRequest:
    if isinstance(item.prompt, str):
        raise ApplianceError("an in-process benchmark needs token ids", hint="use bench serve for a trace with text")
    sampling = SamplingParams(
        max_tokens=item.output_len,  # of models that generate; others end with their prompt
        temperature=scenario.temperature,
        top_p=scenario.top_p,
        ignore_eos=scenario.ignore_eos,
        seed=scenario.seed,
    )
    return GenerateRequest(request_id=key, prompt_token_ids=item.prompt, sampling=sampling, eos_token_ids=eos_token_ids)
