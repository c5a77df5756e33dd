"""The drafting head of speculation: which it is, and its program."""

from appliance.layers.draft_spec import KeptStates
from appliance.models.describe import Described, describe_head
from appliance.models.draft_heads import DraftHead, HeadMethod, head_of_files, head_of_model
from appliance.models.errors import ModelError
from appliance.models.tensors import tensor_problems
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.spec.sections.speculative import SpeculativeSection

RULE = "plan/draft-head"
KEPT_STATES = 256  # of each row, so that a head that was not asked for a while knows what came last
_METHODS: tuple[HeadMethod, ...] = ("mtp", "eagle", "eagle3")


def head_method(spec: SpeculativeSection | None) -> HeadMethod | None:
    """Returns the method of which a head drafts; None if there is none."""
    return None if spec is None else next((each for each in _METHODS if each in spec.methods), None)


def find_head(inputs: PlanInputs, ledger: Ledger) -> DraftHead | None:
    """Returns the head that the spec asks for; None if it asks for none, or it was refused."""
    method, files = head_method(inputs.spec.speculative), inputs.files.draft_model
    if method is None:
        return None
    path = "speculative.method" if method == "mtp" else "speculative.model"
    try:
        if method == "mtp":
            return head_of_model(inputs.model)
        if files is not None:
            return head_of_files(files.facts, inputs.model, method)
    except ModelError as error:
        for problem in error.problems:
            ledger.refuse(path, RULE, problem.message, allowed=problem.allowed, hint=problem.hint or "choose another")
        return None
    ledger.refuse(path, RULE, "the files of the head were not read", hint="plan from a spec file")
    return None


def kept_states(head: DraftHead | None) -> KeptStates | None:
    return None if head is None else head.keeps


def plan_head(head: DraftHead, max_model_len: int, ledger: Ledger) -> Described | None:
    """Returns the program of a head; None if it was refused."""
    try:
        described = describe_head(head, max_model_len)
        problems = tuple(tensor_problems(described, head.facts))
    except ModelError as error:
        problems, described = error.problems, None
    for problem in problems:
        hint = problem.hint or "choose another method"
        ledger.refuse("speculative.method", RULE, f"the head: {problem.message}", allowed=problem.allowed, hint=hint)
    return None if problems else described
