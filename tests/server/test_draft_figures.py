"""What an answer tells of its drafts, in vLLM's words."""

from appliance.engine.messages import DraftCounts
from appliance.server.output.answers import Tally
from appliance.service.requests import TextOutput


def output(index: int, drafts: DraftCounts | None) -> TextOutput:
    return TextOutput(index=index, text="", token_ids=[1, 2], drafts=drafts)


def test_figures_are_the_last_of_each_sequence_and_only_where_asked_for() -> None:
    tally, silent = Tally(3, with_details=False, with_drafts=True), Tally(3, with_details=False)
    first = DraftCounts().with_draft(4, 3)
    for told in (output(0, first), output(0, None), output(1, DraftCounts()), output(0, first.with_draft(2, 0))):
        tally.note(told)
        silent.note(told)
    assert tally.closing()["metrics"] == {
        "speculative_decoding": {
            "mean_acceptance_length": 2.5,
            "draft_acceptance_rate": 0.5,
            "acceptance_histogram": [1, 0, 0, 1],
            "num_spec_steps": 2,
            "num_accepted_draft_tokens": 3,
            "num_draft_tokens": 6,
        }
    }
    assert silent.closing() == {"usage": silent.usage()}
