"""Pass `embeds`: whether prompts may have embeddings in place of token ids."""

from typing import Final

from appliance.models.describe import Described
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.modelling import Modelled
from appliance.plan.types import PoolingPlan

FIELD: Final = "model.enable_prompt_embeds"
RULE: Final = "plan/prompt-embeds"


def plan_embeds(inputs: PlanInputs, modelled: Modelled, pooling: PoolingPlan | None, ledger: Ledger) -> bool:
    """Refuses them where no program of ours reads them, or nothing is generated."""
    if not inputs.spec.model.enable_prompt_embeds:
        return False
    message = None
    if modelled.plan is not None:
        message = "transformers' code runs this model, and reads token ids alone here"
    elif pooling is not None:
        message = f"the model's task is {pooling.task}, and prompts of embeddings are for models that generate"
    if message is not None:
        ledger.refuse(FIELD, RULE, message, allowed="false", hint=f"remove {FIELD}")
        return False
    return True


def embeds_width(described: Described, ledger: Ledger) -> int:
    """The numbers of a token's embedding; 0 if prompts have none."""
    width = described.compiled.program.embeds_width
    if width is None:
        return 0
    return ledger.take("model.embeds_width", FIELD, width, "of a token, in place of its row of the table")
