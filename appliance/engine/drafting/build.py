"""Makes the drafters that a plan names."""

from appliance.engine.drafting.custom import CustomDrafter, load_propose
from appliance.engine.drafting.history import History
from appliance.engine.drafting.interface import Drafter
from appliance.engine.drafting.ngram import NgramDrafter
from appliance.engine.drafting.suffix import GRAM, SuffixDrafter, SuffixLimits
from appliance.plan.types import MODEL_METHODS, DraftMethod, SpeculationPlan


def make_drafters(plan: SpeculationPlan | None) -> tuple[Drafter, ...]:
    """Returns a drafter for each method; which needs no model; none without a plan. Raises PluginError."""
    return () if plan is None else tuple(_make(method, plan) for method in plan.methods if method not in MODEL_METHODS)


def _make(method: DraftMethod, plan: SpeculationPlan) -> Drafter:
    match method:
        case "ngram":
            return NgramDrafter(plan.prompt_lookup_min, plan.prompt_lookup_max)
        case "suffix":
            limits = SuffixLimits(
                max_depth=plan.suffix_max_depth,
                max_spec_factor=plan.suffix_max_spec_factor,
                min_token_prob=plan.suffix_min_token_prob,
            )
            return SuffixDrafter(limits, History(GRAM, plan.suffix_max_cached_requests, plan.suffix_cache_bytes))
        case "custom_class":
            assert plan.drafter is not None, "the spec's rules hold"
            return CustomDrafter(load_propose(plan.drafter))
        case "draft_model" | "mtp" | "eagle" | "eagle3" | "medusa" | "mlp_speculator":
            raise AssertionError("it is loaded with the model")
