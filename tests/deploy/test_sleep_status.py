"""What `status` reads of sleep from a server's metrics."""

import msgspec

from appliance.deploy.sleep import read_sleep, sleep_text
from appliance.engine.sleep_messages import SLEEP_TAGS, SleepStats
from appliance.service.metrics import ServiceMetrics
from tests.deploy.test_speculation import STATS


def rendered(*told: SleepStats | None) -> str:
    metrics = ServiceMetrics("model")
    for each in told:
        metrics.of_engine().note(msgspec.structs.replace(STATS, sleep=each))
        text = metrics.render().decode()
    return text


def test_an_engine_that_sleeps_says_so_with_its_level_and_seconds() -> None:
    text = rendered(SleepStats(), SleepStats(asleep=SLEEP_TAGS, level=1, sleep_s=0.25))
    assert 'vllm:engine_sleep_state{engine="0",model_name="model",sleep_state="weights_offloaded"} 1.0' in text
    assert 'vllm:engine_sleep_state{engine="0",model_name="model",sleep_state="awake"} 0.0' in text
    found = read_sleep(text)
    assert found == {"is_sleeping": True, "level": 1, "sleep_s": 0.25, "wake_s": 0.0}
    assert sleep_text(found) == "asleep at level 1, in 0.25 s; POST /wake_up brings it back"


def test_of_several_engines_those_that_sleep_are_named() -> None:
    metrics = ServiceMetrics("model")
    states = (SleepStats(level=1, sleep_s=0.5, wake_s=1.0), SleepStats(asleep=SLEEP_TAGS, level=1, sleep_s=0.25))
    for number, each in enumerate(states):
        metrics.of_engine(number).note(msgspec.structs.replace(STATS, sleep=each))
    found = read_sleep(metrics.render().decode())
    assert found is not None
    assert (found["is_sleeping"], found["engines"]) == (True, {"0": 0, "1": 1})
    told = "engine 1 of 2 asleep at level 1, in 0.50 s; POST /wake_up brings it back"
    assert sleep_text(found) == told
    both = {**found, "engines": {"0": 1, "1": 1}}
    assert sleep_text(both) == told.removeprefix("engine 1 of 2 ")


def test_an_engine_that_woke_says_what_it_took() -> None:
    text = rendered(SleepStats(asleep=SLEEP_TAGS, level=2, sleep_s=0.25), SleepStats(level=2, sleep_s=0.25, wake_s=1.5))
    found = read_sleep(text)
    assert found == {"is_sleeping": False, "level": 0, "sleep_s": 0.25, "wake_s": 1.5}
    assert sleep_text(found) == "awake, after 0.25 s to sleep and 1.50 s to wake"


def test_an_engine_that_cannot_or_did_not_sleep_says_nothing() -> None:
    assert read_sleep(rendered(None)) is None
    assert read_sleep(rendered(SleepStats())) is None
    assert sleep_text(None) is None
