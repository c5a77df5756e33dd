"""What `status` reads of drafts from a server's metrics."""

import msgspec

from appliance.cli.status import _drafts
from appliance.deploy.speculation import read_speculation
from appliance.engine.messages import EngineStats
from appliance.engine.speculation_messages import MethodStats, SpeculationStats
from appliance.service.metrics import ServiceMetrics

STATS = EngineStats(
    time=0.0, num_running=0, num_waiting=0, num_blocks_used=0, num_blocks_total=1, num_steps=1, prompt_tokens=0,
    generation_tokens=0, prefix_queries=0, prefix_hits=0, num_preemptions=0,
)  # fmt: skip


def rendered(speculation: SpeculationStats | None) -> str:
    metrics = ServiceMetrics("model")
    metrics.of_engine().note(msgspec.structs.replace(STATS, speculation=speculation))
    return metrics.render().decode()


def test_drafts_are_read_from_what_the_server_exports() -> None:
    told = SpeculationStats(
        methods={"ngram": MethodStats(3, 9, 5, (3, 2)), "suffix": MethodStats(1, 4, 0)},
        steps={"verified": 4, "no_proposal": 7, "off": 0},
    )
    text = rendered(told)
    assert 'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="model"} 13.0' in text
    assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="model",position="1"} 2.0' in text
    found = read_speculation(text)
    assert found == {
        "methods": {
            "ngram": {"drafts": 3, "tokens": 9, "accepted": 5},
            "suffix": {"drafts": 1, "tokens": 4, "accepted": 0},
        },
        "steps": {"verified": 4, "no_proposal": 7},
    }
    assert _drafts(found) == (
        "ngram 5 of 9 tokens accepted; suffix 0 of 4 tokens accepted; steps: verified 4, no proposal 7"
    )


def test_counts_of_replicas_are_added_up() -> None:
    metrics = ServiceMetrics("model")
    for number, verified in enumerate((4, 2)):
        told = SpeculationStats(methods={"ngram": MethodStats(1, 3, 2)}, steps={"verified": verified})
        metrics.of_engine(number).note(msgspec.structs.replace(STATS, speculation=told))
    text = metrics.render().decode()
    assert 'method_drafts_total{engine="1",method="ngram",model_name="model"} 1.0' in text
    assert read_speculation(text) == {
        "methods": {"ngram": {"drafts": 2, "tokens": 6, "accepted": 4}},
        "steps": {"verified": 6},
    }


def test_a_server_without_speculation_says_nothing() -> None:
    assert read_speculation(rendered(None)) is None
    assert _drafts(None) is None
