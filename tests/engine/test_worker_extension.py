"""Methods of the operator's own on every rank: results in order, and failures that cost only their call."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from appliance.base.plugins import PluginError
from appliance.engine.extension import Extension
from appliance.engine.extension_messages import ExtensionAnswer, ExtensionCall
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams, UtilityRequest, UtilityResult
from appliance.engine.ranks.handles import RankStartError
from appliance.plan.prepare import prepare

from .plans import scripted_plan
from .test_rank_group import machine_with, pytestmark, spec_of

__all__ = ["pytestmark", "spec_of"]

HERE = "tests.engine.extensions."
TRUSTED = ("decoding.trust_plugins=true", f"parallelism.worker_extension_cls={HERE}Reports")


def ask(
    engine: InprocEngine, method: str, *args: object, timeout_s: float = 5.0, **kwargs: object
) -> list[ExtensionAnswer]:
    call = ExtensionCall(method, [*args], kwargs, timeout_s)
    engine.send(UtilityRequest(call_id="c", method="call_extension", call=call))
    (result,) = (event for event in engine.receive() if isinstance(event, UtilityResult))
    assert result.error is None
    return msgspec.msgpack.decode(result.value, type=list[ExtensionAnswer])


def says(engine: InprocEngine) -> list[int]:
    sampling = SamplingParams(max_tokens=4, temperature=0.0)
    engine.send(GenerateRequest(request_id="r", prompt_token_ids=[5, 6, 7], sampling=sampling))
    tokens: list[int] = []
    while engine.has_work:
        for event in engine.receive():
            assert isinstance(event, OutputBatch)
            tokens += [token for output in event.outputs for token in output.token_ids]
    return tokens


def test_one_rank_answers(tmp_path: Path) -> None:
    with InprocEngine.from_plan(scripted_plan(tmp_path, worker_extension_cls=f"{HERE}Reports")) as engine:
        assert ask(engine, "where") == [ExtensionAnswer({"rank": 0, "of": 1})]
        assert ask(engine, "add", 2, second=3) == [ExtensionAnswer(5)]
        assert "extensions.Reports" in ask(engine, "thing")[0].value
        before = says(engine)
        for method, words in (
            ("fails", "LookupError: no idea"), ("exits", "SystemExit"), ("large", "at most"), ("add", "TypeError"),
            ("waits", "waits is async"),
        ):  # fmt: skip
            assert words in (ask(engine, method)[0].error or "")
        assert "more than 0.05 s" in (ask(engine, "hangs", timeout_s=0.05)[0].error or "")
        for method in ("_hidden", "missing", "worker"):
            assert ask(engine, method)[0].is_unknown
        assert says(engine) == before


def test_without_a_class_nothing_is_called(tmp_path: Path) -> None:
    with InprocEngine.from_plan(scripted_plan(tmp_path)) as engine:
        engine.send(UtilityRequest(call_id="c", method="call_extension", call=ExtensionCall("where")))
        (result,) = engine.receive()
        assert isinstance(result, UtilityResult)
        assert "names no class" in (result.error or "")


@pytest.mark.parametrize("sizes", [("tensor=2",), ("pipeline=2",)])
def test_every_rank_answers_in_order(spec_of: Callable[[str], Path], sizes: tuple[str, ...], tmp_path: Path) -> None:
    spread = tuple(f"parallelism.{each}" for each in sizes)
    plan = prepare(str(spec_of("llama")), (*TRUSTED, *spread), hardware=machine_with(4, tmp_path)).plan
    with InprocEngine.from_plan(plan) as engine:
        before = says(engine)
        assert ask(engine, "where") == [ExtensionAnswer({"rank": rank, "of": 2}) for rank in (0, 1)]
        first, last = ask(engine, "bytes_by_purpose")
        assert all(answer.value["weights"] > 0 for answer in (first, last))
        first, last = ask(engine, "fails_on_the_last")
        assert first == ExtensionAnswer()
        assert last.error == "LookupError: the last one"
        first, last = ask(engine, "hangs", timeout_s=0.2)
        assert all("more than 0.2 s" in (each.error or "") for each in (first, last))
        assert says(engine) == before


def test_a_rank_that_cannot_make_its_object_is_named(spec_of: Callable[[str], Path], tmp_path: Path) -> None:
    plan = prepare(str(spec_of("llama")), (*TRUSTED, "parallelism.tensor=2"), hardware=machine_with(4, tmp_path)).plan
    parallel = msgspec.structs.replace(plan.parallel, worker_extension_cls=f"{HERE}CannotBeMade")
    with pytest.raises((PluginError, RankStartError), match=r"CannotBeMade\(\) raised TypeError"):
        InprocEngine.from_plan(msgspec.structs.replace(plan, parallel=parallel))


@pytest.mark.parametrize(("name", "words"), [("function", "no class"), ("missing", "cannot be imported")])
def test_what_is_no_extension_is_refused(name: str, words: str) -> None:
    with pytest.raises(PluginError, match=words) as error:
        Extension(HERE + name, None)  # type: ignore[arg-type] # it is not reached
    assert "parallelism.worker_extension_cls" in str(error.value)
