"""The slots of recurrent states: how many, their bytes, and what the spec may say of them."""

from appliance.hardware import load_profiles, select_profile
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.states import PlannedStates, plan_states
from appliance.program.operators import StepProgram
from appliance.program.slots import Extent, Slot
from appliance.program.states import StateShape
from appliance.spec import LoadedSpec

from .machines import MODEL, load, machine, small_model

LOGITS = Slot(0, Extent.SAMPLED, 8)
PROGRAM = StepProgram((), (LOGITS,), LOGITS, states=(StateShape((3, 100)), StateShape((4, 25, 7))))
SLOT = 4 * (300 + 700)


def planned(loaded: LoadedSpec, left: int = 1 << 30, program: StepProgram = PROGRAM) -> tuple[PlannedStates, Ledger]:
    ledger, facts = Ledger(loaded), machine()
    profile = select_profile(facts, load_profiles()).profile
    inputs = PlanInputs(loaded=loaded, facts=facts, profile=profile, model=small_model())
    return plan_states(inputs, program, 16, left, ledger), ledger


def test_each_sequence_has_two_snapshots() -> None:
    states, ledger = planned(load())
    assert states.num_snapshots == 32
    assert [(item.name, item.size_bytes) for item in states.items] == [("states", (16 + 1 + 32) * SLOT)]
    assert "2 for each sequence" in ledger.decisions[-1].reason


def test_snapshots_take_an_eighth_of_what_is_left_at_most() -> None:
    states, ledger = planned(load(), left=17 * SLOT + 8 * 5 * SLOT)
    assert states.num_snapshots == 5
    assert "an eighth" in ledger.decisions[-1].reason
    assert planned(load(), left=0)[0].num_snapshots == 0


def test_the_spec_may_say_how_many() -> None:
    assert planned(load(MODEL + "cache: {state_snapshots: 3}\n"))[0].num_snapshots == 3
    assert planned(load(MODEL + "cache: {prefix_caching: false}\n"))[0].num_snapshots == 0


def test_a_program_without_states_has_no_item() -> None:
    states, ledger = planned(load(), program=StepProgram((), (LOGITS,), LOGITS))
    assert states == PlannedStates()
    assert not ledger.decisions


def test_states_are_float32_and_that_is_said_where_it_is_asked_for() -> None:
    asked = load(MODEL + "cache: {mamba_cache_dtype: float32}\n")
    _, ledger = planned(asked)
    said = ledger.decisions[0]
    assert (said.path, said.value) == ("cache.mamba_cache_dtype", "float32")
    assert "in every kernel set" in ledger.decisions[0].reason
    _, ledger = planned(asked, program=StepProgram((), (LOGITS,), LOGITS))
    assert "changes nothing" in ledger.decisions[0].reason


def test_drafts_have_slots_for_the_states_before_them() -> None:
    speculating = load(MODEL + "speculative: {method: ngram}\n")
    states, _ = planned(speculating)
    assert states.num_draft_states == 16
    assert [item.size_bytes for item in states.items] == [(16 + 1 + 32 + 16) * SLOT]
    assert "16 before drafts" in states.items[0].formula
    few, ledger = planned(speculating, left=46 * SLOT)
    assert few.num_draft_states == 3
    assert "an eighth" in ledger.decisions[-1].reason
    none, ledger = planned(speculating, left=18 * SLOT)
    assert none.num_draft_states == 0
    assert [refusal.rule for refusal in ledger.refusals] == ["plan/speculation"]
    wished, _ = planned(load(MODEL + "speculative: {method: ngram, num_draft_states: 5}\n"))
    assert wished.num_draft_states == 5
    assert planned(load())[0].num_draft_states == 0


def test_slots_before_drafts_are_refused_without_states() -> None:
    _, ledger = planned(
        load(MODEL + "speculative: {num_draft_states: 5}\n"), program=StepProgram((), (LOGITS,), LOGITS)
    )
    assert [refusal.rule for refusal in ledger.refusals] == ["plan/speculation"]
