"""A short soak over a real model. `python -m tests.e2e.soak` is the long one."""

from dataclasses import replace
from pathlib import Path

from tests.e2e.served import make_random_model, serving
from tests.e2e.soak import Counts, Report, Soak, soak


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_random_model(tmp_path / "model")
    with serving(tmp_path, tmp_path / "model", "cache.num_blocks=256", "model.max_model_len=1024") as server:
        report = await soak(
            Soak(url=server.url, pid=server.process.pid, clients=32, seconds=3.0, warmup_seconds=1.5, max_requests=5000)
        )
        assert report.faults() == []
        assert report.counts.finished > 32
        assert report.kv_bytes_end >= report.kv_bytes_warm > 0
        assert '"faults": []' in report.as_json()


def test_memory_that_grows_beyond_the_kv_cache_is_a_fault() -> None:
    grown = Report(Counts(1, 1), 1.0, 0.0, {}, 0, 0, 0, 300 << 20, 500 << 20, 10 << 20, 190 << 20)
    assert grown.faults() == []
    assert "beyond the KV cache" in replace(grown, kv_bytes_end=20 << 20).faults()[0]
