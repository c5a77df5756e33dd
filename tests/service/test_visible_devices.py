"""Which accelerators the engine of each replica sees."""

from appliance.catalog.visible_devices import visible_devices


def test_each_replica_sees_its_own() -> None:
    shown = [visible_devices("cuda", 2 * number, 2, {})["CUDA_VISIBLE_DEVICES"] for number in range(3)]
    assert shown == ["0,1", "2,3", "4,5"]
    assert visible_devices("rocm", 1, 1, {}) == {"HIP_VISIBLE_DEVICES": "1"}


def test_of_those_that_the_server_sees() -> None:
    assert visible_devices("cuda", 1, 2, {"CUDA_VISIBLE_DEVICES": "7, 5,3"}) == {"CUDA_VISIBLE_DEVICES": "5,3"}
    assert visible_devices("cuda", 1, 1, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}


def test_a_cpu_has_none() -> None:
    assert visible_devices("cpu", 0, 1, {"CUDA_VISIBLE_DEVICES": "1"}) == {}
