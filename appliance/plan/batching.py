"""Pass `batching`: how much a step may run. Before `memory`, because a step's size decides its activations."""

from appliance.plan.context import ContextRequest
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.types import PoolingPlan, SchedulerPlan

POOLED_SEQS = 256  # prompts in a step of a model that pools: they take no memory from one step to the next
DEFAULT_STEP_S = 0.15  # nearly seven tokens a second, faster than most people read
STEP_SHARE = 0.8
DEFAULT_LATE_SHARE = 0.04  # of the 5 % that a bound on the 95th percentile leaves


def plan_scheduler(
    inputs: PlanInputs, context: ContextRequest, pooling: PoolingPlan | None, ledger: Ledger
) -> SchedulerPlan:
    """pooling: of a model that pools, which may run many short prompts in a step, and perhaps only whole ones."""
    spec, defaults = inputs.spec.scheduler, inputs.profile.defaults
    num_seqs = _number(inputs, "max_num_seqs", defaults.max_num_seqs if pooling is None else POOLED_SEQS, ledger)
    chunked = _chunked_prefill(inputs, pooling, ledger)
    num_tokens = _num_tokens(inputs, context, num_seqs, chunked, ledger)
    return SchedulerPlan(
        policy=ledger.take("scheduler.policy", "scheduler.policy", spec.policy),
        scheduler_cls=spec.scheduler_cls
        and ledger.take("scheduler.scheduler_cls", "scheduler.scheduler_cls", spec.scheduler_cls),
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_tokens,
        chunked_prefill=chunked,
        max_num_partial_prefills=spec.max_num_partial_prefills,
        max_long_partial_prefills=spec.max_long_partial_prefills,
        long_prefill_token_threshold=spec.long_prefill_token_threshold,
        max_waiting=spec.max_waiting,
        target_step_s=_target_step_s(inputs, chunked, ledger),
        late_share=_late_share(inputs, chunked, ledger),
        delay_factor=spec.scheduler_delay_factor,
        async_scheduling=ledger.take("scheduler.async_scheduling", "scheduler.async_scheduling", spec.async_scheduling),
        max_num_sampled=num_tokens if pooling is not None and pooling.kind == "all" else None,
    )


def _chunked_prefill(inputs: PlanInputs, pooling: PoolingPlan | None, ledger: Ledger) -> bool:
    path, wanted = "scheduler.chunked_prefill", inputs.spec.scheduler.chunked_prefill
    if pooling is None or not pooling.runs_whole:
        return ledger.take(path, path, True if wanted == AUTO else bool(wanted))
    why = f"pooling by {pooling.kind} needs all tokens of a prompt in one step"
    if wanted is True:
        ledger.refuse(path, "plan/whole-prompts", why, allowed="auto, false", hint="write auto")
    return ledger.decide(path, False, "model", why)


def _target_step_s(inputs: PlanInputs, chunked: bool, ledger: Ledger) -> float | None:
    """Returns how long a step may last while tokens are generated: their readers wait for that long."""
    path = "scheduler.target_step_s"
    if not chunked:
        return ledger.decide(path, None, "computed", "without chunked prefill a prompt cannot be cut")
    slo = inputs.spec.slo
    bounds = [each for each in (slo.itl_p50, slo.itl_p90, slo.itl_p95, slo.itl_p99) if each is not None]
    if not bounds:
        return ledger.decide(path, DEFAULT_STEP_S, "default", "no bound on the time between tokens in the spec's slo")
    reason = f"{STEP_SHARE:.0%} of the tightest slo.itl bound; the rest is the way to the client"
    return ledger.decide(path, round(STEP_SHARE * min(bounds), 4), "computed", reason)


def _late_share(inputs: PlanInputs, chunked: bool, ledger: Ledger) -> float:
    """Returns the share of gaps between tokens that may be longer, so that waiting prompts run in one step."""
    path = "scheduler.late_share"
    if not chunked:
        return ledger.decide(path, 0.0, "computed", "without chunked prefill a prompt cannot be cut")
    slo = inputs.spec.slo
    left_free = {0.5: slo.itl_p50, 0.1: slo.itl_p90, 0.05: slo.itl_p95, 0.01: slo.itl_p99}
    bounded = [share for share, bound in left_free.items() if bound is not None]
    if not bounded or STEP_SHARE * min(bounded) >= DEFAULT_LATE_SHARE:
        reason = f"{STEP_SHARE:.0%} of what a bound on the 95th percentile of the time between tokens leaves free"
        return ledger.decide(path, DEFAULT_LATE_SHARE, "default", reason)
    reason = f"{STEP_SHARE:.0%} of what the slo's bound on the highest percentile of it leaves free"
    return ledger.decide(path, STEP_SHARE * min(bounded), "computed", reason)


def _number(inputs: PlanInputs, name: str, default: int, ledger: Ledger) -> int:
    wanted = getattr(inputs.spec.scheduler, name)
    path = f"scheduler.{name}"
    if wanted != AUTO:
        return ledger.take(path, path, int(wanted))
    return ledger.decide(path, default, "profile", f"default of profile {inputs.profile.name}")


def _num_tokens(inputs: PlanInputs, context: ContextRequest, num_seqs: int, chunked: bool, ledger: Ledger) -> int:
    """Returns at least a token for each sequence; without chunked prefill, at least the longest prompt."""
    path, default = "scheduler.max_num_batched_tokens", inputs.profile.defaults.max_num_batched_tokens
    wanted = inputs.spec.scheduler.max_num_batched_tokens
    what = "one token a sequence" if chunked else "the longest prompt"
    least = num_seqs if chunked else max(num_seqs, context.limit)
    if wanted == "auto" and default < least:
        reason = "a token for each sequence" if chunked else "without chunked prefill a step holds the longest prompt"
        return ledger.decide(path, least, "computed", reason)
    if wanted != "auto" and wanted < least:
        message = f"a step of {wanted:,} tokens cannot hold {what}"
        hint = f"write at least {least}" + ("" if chunked else ", or chunked_prefill: true")
        ledger.refuse(path, "plan/budget", message, allowed=f"auto, or at least {least}", hint=hint)
    return _number(inputs, "max_num_batched_tokens", default, ledger)
