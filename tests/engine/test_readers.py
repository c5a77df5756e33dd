"""Formats and options that name a reader: an engine that loads by it says what it says otherwise."""

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.base.errors import SpecError
from appliance.checkpoint.streamed import StreamedReader
from appliance.plan.loading_types import StreamPlan
from appliance.plan.prepare import prepare
from tests.engine.test_rank_group import answers, engine_of, pytestmark, spec_of

__all__ = ["pytestmark", "spec_of"]

KEY = "loading.model_loader_extra_config="
CHOICES = {
    "streamer": (("loading.load_format=runai_streamer", KEY + "{concurrency: 3, memory_limit: 4096}"), 3, 4096),
    "fast": (("loading.load_format=fastsafetensors",), 8, 1 << 30),
    "threads": ((KEY + "{enable_multithread_load: true, num_threads: 2}",), 2, 1 << 30),
}


@pytest.mark.parametrize("name", CHOICES)
def test_answers_are_those_of_a_mapping(
    name: str, spec_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides, threads, memory = CHOICES[name]
    spec, read = spec_of("llama"), StreamedReader.read
    assert prepare(str(spec), overrides).plan.loading.stream == StreamPlan(num_threads=threads, memory_bytes=memory)
    with engine_of(spec, "loading.keep_packed=false") as engine:
        mapped = answers(engine, 1)
    names = []

    def spy(reader: StreamedReader, tensor: str) -> object:
        names.append(tensor)
        return read(reader, tensor)

    monkeypatch.setattr(StreamedReader, "read", spy)
    with engine_of(spec, "loading.keep_packed=false", *overrides) as engine:
        assert answers(engine, 1) == mapped
    assert len(set(names)) > 10


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((KEY + "{concurency: 3}", "loading.load_format=runai_streamer"), "runai_streamer has no option 'concurency'"),
        ((KEY + "{concurrency: 0}", "loading.load_format=runai_streamer"), "concurrency is 0"),
        ((KEY + "{concurrency: true}", "loading.load_format=runai_streamer"), "concurrency is True"),
        ((KEY + "{enable_multithread_load: 1}",), "enable_multithread_load is 1"),
        ((KEY + "{num_threads: 4}",), "num_threads has no use without enable_multithread_load: true"),
        ((KEY + "{num_threads: 4}", "loading.load_format=dummy"), "dummy has no option 'num_threads'"),
        (("model.model_impl=transformers", "loading.load_format=fastsafetensors"), "modelling code of transformers"),
    ],
)
def test_what_no_reader_has_is_refused(overrides: tuple[str, ...], said: str, spec_of: Callable[[str], Path]) -> None:
    with pytest.raises(SpecError) as caught:
        prepare(str(spec_of("llama")), overrides)
    assert any(said in each.message and each.hint for each in caught.value.diagnostics)
