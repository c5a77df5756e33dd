"""Speed and ETA count what this run did, not what it found done."""

from appliance.jobs.progress import BatchProgress


def test_speed_and_eta() -> None:
    now = [100.0]
    progress = BatchProgress(total=10, resumed=4, done=4, clock=lambda: now[0])
    assert progress.eta_s is None
    assert str(progress) == "4/10"
    now[0] = 110.0
    progress.done, progress.failed, progress.completion_tokens = 6, 1, 50
    assert progress.eta_s == 20.0
    assert str(progress) == "6/10, 1 failed, 0.2 requests/s, 5 tokens/s, ETA 20.0 s"
