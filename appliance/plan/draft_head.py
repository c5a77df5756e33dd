"""The drafting head of speculation: which it is, and its program."""

from appliance.layers.draft_spec import KeptStates
from appliance.models.describe import Described, describe_head, describe_stages
from appliance.models.draft_heads import DraftHead, HeadMethod, head_of_files, head_of_model
from appliance.models.draft_stages import DraftStages, StageMethod, stages_of_files
from appliance.models.errors import ModelError
from appliance.models.tensors import tensor_problems
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.spec.sections.speculative import SpeculativeSection

RULE = "plan/draft-head"
KEPT_STATES = 256  # of each row, so that a head that was not asked for a while knows what came last
_METHODS: tuple[HeadMethod, ...] = ("mtp", "eagle", "eagle3")
_OF_STAGES: tuple[StageMethod, ...] = ("medusa", "mlp_speculator")
Head = DraftHead | DraftStages


def find_head(inputs: PlanInputs, ledger: Ledger) -> Head | None:
    """Returns the head that the spec asks for; None if it asks for none, or it was refused."""
    spec, files = inputs.spec.speculative, inputs.files.draft_model
    method = None if spec is None else next((each for each in (*_METHODS, *_OF_STAGES) if each in spec.methods), None)
    if spec is None or method is None:
        return None
    path = "speculative.method" if method == "mtp" else "speculative.model"
    try:
        if method == "mtp":
            return head_of_model(inputs.model)
        if files is not None and (method == "medusa" or method == "mlp_speculator"):
            return _checked(stages_of_files(files.facts, inputs.model, method), spec, ledger)
        if files is not None:
            return head_of_files(files.facts, inputs.model, "eagle" if method == "eagle" else "eagle3")
    except ModelError as error:
        for problem in error.problems:
            ledger.refuse(path, RULE, problem.message, allowed=problem.allowed, hint=problem.hint or "choose another")
        return None
    ledger.refuse(path, RULE, "the files of the head were not read", hint="plan from a spec file")
    return None


def _checked(stages: DraftStages, spec: SpeculativeSection, ledger: Ledger) -> DraftStages | None:
    """Refuses what the spec asks of heads that have no cache, and guess so many tokens and no more."""
    if spec.draft_kv_cache != AUTO:
        ledger.refuse("speculative.draft_kv_cache", RULE, "heads of this method keep no cache", hint="remove it")
        return None
    most = stages.num_tokens
    if len(spec.methods) == 1 and spec.num_tokens != AUTO and int(spec.num_tokens) > most:
        message = f"the heads guess {most} tokens, and {spec.num_tokens} are asked for"
        ledger.refuse("speculative.num_tokens", RULE, message, allowed=f"1 to {most}", hint=f"write {most}, or auto")
        return None
    return stages


def kept_states(head: Head | None) -> KeptStates | None:
    return None if head is None else head.keeps


def plan_head(head: Head, max_model_len: int, ledger: Ledger) -> tuple[Described, ...]:
    """Returns the program of a head, or of each of its stages; none if it was refused."""
    described: tuple[Described, ...] = ()
    try:
        described = describe_stages(head) if isinstance(head, DraftStages) else (describe_head(head, max_model_len),)
        problems = tuple(problem for each in described for problem in tensor_problems(each, head.facts))
    except ModelError as error:
        problems = error.problems
    for problem in problems:
        hint = problem.hint or "choose another method"
        ledger.refuse("speculative.method", RULE, f"the head: {problem.message}", allowed=problem.allowed, hint=hint)
    return () if problems else described
