"""What `status` says of replicas."""

from appliance.deploy.replicas import replicas_text, with_load

READY = {"engine": 0, "state": "ready", "reason": "", "restarts": 0}
AWAY = {"engine": 1, "state": "restarting", "reason": "the engine process was ended by SIGKILL", "restarts": 2}
METRICS = """\
appliance_requests_running{engine="0",model_name="m"} 3.0
appliance_requests_waiting{engine="0",model_name="m"} 1.0
appliance_requests_running{engine="1",model_name="m"} 0.0
appliance_requests_waiting{engine="1",model_name="m"} 0.0
"""


def test_each_replica_is_told_with_its_load() -> None:
    assert replicas_text(with_load([READY, AWAY], METRICS)) == (
        "engine 0 ready, 3 running, 1 waiting; "
        "engine 1 restarting (the engine process was ended by SIGKILL), 0 running, 0 waiting, 2 restarts"
    )


def test_without_metrics_there_is_no_load() -> None:
    assert replicas_text(with_load([READY], "")) == "engine 0 ready"
    assert replicas_text(None) is None
