"""Pass `speculation`: who proposes tokens ahead, and how many of them a step may verify."""

import msgspec

from appliance.base.units import format_size
from appliance.plan.draft_model import PlannedDraftModel
from appliance.plan.experts import decode_bytes
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.program import PlannedProgram
from appliance.plan.types import MODEL_METHODS, DraftMethod, MemoryItem, PoolingPlan, SchedulerPlan, SpeculationPlan
from appliance.spec.sections.speculative import SpeculativeSection

DEFAULT_NUM_TOKENS = 16
DEFAULT_STEP_TOKENS = 32  # beyond about so many tokens, a step of a small CPU is bound by computing, and drafts cost
LONGEST_GRAM = 5  # as vLLM
SHORTEST_GRAM = 3  # shorter ones seldom continue alike


def plan_speculation(inputs: PlanInputs, pooling: PoolingPlan | None, ledger: Ledger) -> SpeculationPlan | None:
    """Returns None if the spec has no section, or no use for one."""
    spec = inputs.spec.speculative
    if spec is None:
        return None
    if pooling is not None:
        why = "a model that pools generates no tokens, so none can be proposed"
        ledger.refuse("speculative", "plan/speculation", why, hint="remove speculative")
        return None
    step_tokens = _step_tokens(spec, ledger)
    least, longest = _grams(spec)
    return SpeculationPlan(
        methods=_methods(spec, ledger),
        drafter=spec.drafter,
        enabled=spec.enabled,
        num_tokens=_num_tokens(spec, step_tokens, ledger),
        max_num_draft_tokens=step_tokens,
        adaptive=spec.adaptive,
        disable_by_batch_size=spec.disable_by_batch_size,
        prompt_lookup_min=least,
        prompt_lookup_max=longest,
        suffix_max_depth=spec.suffix_decoding_max_tree_depth,
        suffix_max_cached_requests=spec.suffix_decoding_max_cached_requests,
        suffix_cache_bytes=int(spec.suffix_decoding_cache_size),
        suffix_max_spec_factor=spec.suffix_decoding_max_spec_factor,
        suffix_min_token_prob=spec.suffix_decoding_min_token_prob,
    )


def drafts_item(speculation: SpeculationPlan | None) -> tuple[MemoryItem, ...]:
    """Returns the memory of finished answers, in which drafts are looked up."""
    if speculation is None or "suffix" not in speculation.methods or not speculation.suffix_max_cached_requests:
        return ()
    size, answers = speculation.suffix_cache_bytes, speculation.suffix_max_cached_requests
    formula = f"up to {answers:,} finished answers to propose from, in {format_size(size)}"
    return (MemoryItem(name="drafts", size_bytes=size, formula=formula),)


def with_drafts(scheduler: SchedulerPlan, speculation: SpeculationPlan | None) -> SchedulerPlan:
    """Returns the scheduler's plan with a row of logits for each draft of a step, beside one for each sequence."""
    if speculation is None:
        return scheduler
    return msgspec.structs.replace(scheduler, max_num_sampled=scheduler.max_num_seqs + speculation.max_num_draft_tokens)


def with_states(speculation: SpeculationPlan | None, num_draft_states: int | None) -> SpeculationPlan | None:
    """Returns the plan with the slots of states that drafts have, of a model with states."""
    return speculation and msgspec.structs.replace(speculation, num_draft_states=num_draft_states)


def with_draft_model(
    speculation: SpeculationPlan | None, planned: PlannedDraftModel | None, num_blocks: int, program: PlannedProgram
) -> SpeculationPlan | None:
    """Returns the plan with its draft model, as large as the memory pass decided."""
    if speculation is None or planned is None:
        return speculation
    share = decode_bytes(planned.program) / max(1, decode_bytes(program))
    return msgspec.structs.replace(speculation, draft_model=planned.plan(num_blocks, share))


def _methods(spec: SpeculativeSection, ledger: Ledger) -> tuple[DraftMethod, ...]:
    """Returns the methods that are built; others were refused."""
    path = "speculation.methods"
    built: tuple[DraftMethod, ...] = ("ngram", "suffix", "custom_class", *MODEL_METHODS)
    found = tuple(name for name in built if name in spec.methods)
    if spec.method != AUTO:
        return tuple(ledger.take(path, "speculative.method", found))
    reason = "it proposes where text repeats, also of earlier answers, and seldom elsewhere"
    return tuple(ledger.decide(path, found, "default", reason if spec.model is None else "a model is named"))


def _step_tokens(spec: SpeculativeSection, ledger: Ledger) -> int:
    path, wanted = "speculative.max_num_draft_tokens", spec.max_num_draft_tokens
    if wanted != AUTO:
        return ledger.take("speculation.max_num_draft_tokens", path, int(wanted))
    least = 0 if spec.num_tokens == AUTO else int(spec.num_tokens)
    reason = "of all requests together; each has a row of logits in memory"
    return ledger.decide("speculation.max_num_draft_tokens", max(DEFAULT_STEP_TOKENS, least), "default", reason)


def _num_tokens(spec: SpeculativeSection, step_tokens: int, ledger: Ledger) -> int:
    path = "speculation.num_tokens"
    if spec.num_tokens != AUTO:
        return ledger.take(path, "speculative.num_tokens", int(spec.num_tokens))
    reason = "at most; each step takes as many as pay"
    return ledger.decide(path, min(DEFAULT_NUM_TOKENS, step_tokens), "default", reason)


def _grams(spec: SpeculativeSection) -> tuple[int, int]:
    """Returns the shortest and the longest n-gram: of those that the spec leaves out, one that fits the other."""
    least, longest = spec.prompt_lookup_min, spec.prompt_lookup_max
    if longest is None:
        longest = max(LONGEST_GRAM, least or 0)
    return min(SHORTEST_GRAM, longest) if least is None else least, longest
