"""Weights that are replaced while the engine runs: each answer is of one version, and a refusal leaves the old ones."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from appliance.checkpoint.named_tensor import NamedTensor
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import (
    AbortRequest,
    EngineStats,
    FinishReason,
    GenerateRequest,
    OutputBatch,
    SamplingParams,
    UtilityResult,
)
from appliance.engine.weight_messages import UpdateWeights, WeightStats, WeightUpdate
from appliance.plan.prepare import prepare
from tests.e2e.served import make_random_model

NUM_STREAMS, NUM_TOKENS = 32, 12
SETS = {"auto": 32, "torch": 4, "reference": 1}  # and how many different prompts their time allows
SPEC = """\
api_version: appliance/v1
kind: Deployment
name: updated
model: {{source: {source}, max_model_len: 512}}
cache: {{num_blocks: 512}}
scheduler: {{max_num_seqs: 8, max_num_batched_tokens: 64}}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("updates")
    for name, seed in (("a", 7), ("b", 8)):
        (folder / name).mkdir()
        make_random_model(folder / name, seed=seed)
    return {"a": folder / "a", "b": folder / "b"}


def engine_of(model: Path, folder: Path, kernel_set: str = "auto", *overrides: str) -> InprocEngine:
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.format(source=model))
    chosen = () if kernel_set == "auto" else (f"hardware.kernels.kernel_set={kernel_set}",)
    chosen += ("hardware.kernels.batch_invariant=true",) if kernel_set == "torch" else ()
    return InprocEngine.from_plan(prepare(spec, (*chosen, *overrides)).plan)


def prompt(number: int) -> list[int]:
    """Prompts of several blocks, of which those of a kind begin alike."""
    return [20 + (number % 4) * 7 + at % 13 for at in range(40)] + [40 + number]


class Answers:
    """Reads an engine's events into whole answers."""

    def __init__(self, engine: InprocEngine) -> None:
        self.engine = engine
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}
        self.errors: dict[str, str | None] = {}
        self.updates: dict[str, WeightStats | str] = {}

    def ask(self, name: str, number: int, **changes: object) -> None:
        sampling = msgspec.structs.replace(SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0), **changes)
        self.engine.send(GenerateRequest(request_id=name, prompt_token_ids=prompt(number), sampling=sampling))

    def update(self, name: str, **fields: object) -> None:
        self.engine.send(UpdateWeights(call_id=name, update=WeightUpdate(**fields)))  # type: ignore[arg-type] # free

    def read(self) -> None:
        for event in self.engine.receive():
            if isinstance(event, UtilityResult):
                done = None if event.error is not None else msgspec.msgpack.decode(event.value, type=WeightStats)
                self.updates[event.call_id] = event.error or done or ""
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    self.ended[output.request_id] = output.finish_reason
                    self.errors[output.request_id] = output.error

    def read_until_held(self) -> None:
        """Reads until new requests are held. The weights are read first: else the open request could end before."""
        changes = self.engine._loop._weights
        assert changes is not None
        self.read()
        changes.wait(60.0)
        while not self.engine._loop._grammars.is_shut:
            assert self.engine.has_work
            self.read()

    def finish(self) -> None:
        while self.engine.has_work:
            self.read()

    def updated(self, name: str, **fields: object) -> WeightStats | str:
        self.update(name, **fields)
        self.finish()
        return self.updates[name]


def answer(engine: InprocEngine, number: int) -> list[int]:
    answers = Answers(engine)
    answers.ask("one", number)
    answers.finish()
    return answers.tokens["one"]


def stats(engine: InprocEngine) -> EngineStats:
    return msgspec.msgpack.decode(engine.call("stats"), type=EngineStats)


def known(models: dict[str, Path], folder: Path, kernel_set: str) -> dict[str, list[list[int]]]:
    """The answers of each model to each prompt, started from its own checkpoint."""
    found = {}
    for name, path in models.items():
        with engine_of(path, folder, kernel_set) as engine:
            found[name] = [answer(engine, number) for number in range(SETS[kernel_set])]
    assert all(one != other for one, other in zip(found["a"], found["b"], strict=True))
    return found


@pytest.mark.parametrize("kernel_set", ["auto", "torch"])
def test_under_alternating_updates_each_answer_is_that_of_one_model(
    kernel_set: str, models: dict[str, Path], tmp_path: Path
) -> None:
    expected = known(models, tmp_path, kernel_set)
    with engine_of(models["a"], tmp_path, kernel_set) as engine:
        answers, names = Answers(engine), itertools.cycle("ba")
        asked, num_prompts = 0, SETS[kernel_set]
        while asked < (3 * NUM_STREAMS if kernel_set == "auto" else NUM_STREAMS):
            answers.ask(str(asked), asked % num_prompts)
            asked += 1
            if asked % 8 == 5:
                number = asked // 8
                answers.update(str(number), path=str(models[next(names)]), flush_cache=number % 2 == 0)
            for _ in range(3):
                answers.read()
        answers.finish()
        for name in "ba":  # those above may all have come after the last request, on a busy machine
            answers.updated(f"to {name}", path=str(models[name]))
            for _ in range(4):
                answers.ask(str(asked), asked % num_prompts)
                asked += 1
            answers.finish()
        assert len(answers.updates) >= 4
        assert [each for each in answers.updates.values() if isinstance(each, str)] == []
        of = dict.fromkeys(expected, 0)
        for number in range(asked):
            found = answers.tokens[str(number)]
            given = [name for name, each in expected.items() if each[number % num_prompts] == found]
            assert len(given) == 1, number
            of[given[0]] += 1
        assert min(of.values()) >= 4, "both models answered"
        told = stats(engine).weights
        assert told is not None
        assert told.version == len(answers.updates)
        assert told.source == str(models["a" if told.version % 2 == 0 else "b"])


def test_a_request_waits_while_weights_change_or_is_aborted(models: dict[str, Path], tmp_path: Path) -> None:
    expected = known(models, tmp_path, "auto")
    with engine_of(models["a"], tmp_path) as engine:
        answers = Answers(engine)
        answers.ask("before", 0, max_tokens=300)
        answers.read()
        answers.update("abort", path=str(models["b"]), abort=True)
        while "before" not in answers.ended:
            answers.read()
        answers.ask("after", 1)
        answers.finish()
        assert answers.ended["before"] == FinishReason.ABORT
        assert answers.tokens["after"] == expected["b"][1]
        # Without `abort` the open request ends first, as long as it is, and those that come wait.
        answers.ask("long", 2, max_tokens=200, ignore_eos=True)
        answers.read()
        answers.update("wait", path=str(models["a"]))
        answers.read_until_held()
        for name in ("held", "given up"):
            answers.ask(name, 3)
        answers.ask("wrong", 3, max_tokens=0)
        engine.send(AbortRequest(["given up"]))
        assert "held" not in answers.tokens
        answers.finish()
        assert len(answers.tokens["long"]) == 200
        assert answers.tokens["long"][:NUM_TOKENS] == expected["b"][2]
        assert answers.tokens["held"] == expected["a"][3]
        assert answers.ended["given up"] == FinishReason.ABORT
        assert "max_tokens" in (answers.errors["wrong"] or "")


def test_prefixes_of_old_weights_are_never_found_and_those_of_weights_that_come_again_are(
    models: dict[str, Path], tmp_path: Path
) -> None:
    with engine_of(models["a"], tmp_path) as engine:
        answers = Answers(engine)
        for name, path, flush, hits in (
            ("1", "b", False, False),  # of the planned weights nothing is found
            ("2", "a", False, False),
            ("3", "b", False, True),  # these were here before
            ("4", "a", True, False),
        ):
            answer(engine, 0)
            assert isinstance(answers.updated(name, path=str(models[path]), flush_cache=flush), WeightStats)
            before = stats(engine).prefix_hits
            answer(engine, 0)
            assert (stats(engine).prefix_hits > before) == hits, name


def copied(model: Path, folder: Path, change: str) -> Path:
    """A copy of a checkpoint with something wrong."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    match change:
        case "missing":
            del weights[name]
        case "shape":
            weights[name] = weights[name][:, :-4].copy()
        case "dtype":
            weights[name] = weights[name].astype(np.float16)
        case "extra":
            weights["model.layers.2.mlp.up_proj.weight"] = weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if change == "cut":
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[:-4096])
    if change == "config":
        config = (folder / "config.json").read_text()
        (folder / "config.json").write_text(config.replace('"rope_theta": 10000.0', '"rope_theta": 500000.0'))
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("missing", "up_proj.weight"),
        ("shape", "[96, 60]"),
        ("dtype", "is f16, and f32 is served"),
        ("extra", "model.layers.2"),
        ("cut", "model.safetensors"),
        ("config", "another model"),
        ("gone", "gone"),
        ("digest", "was asked for"),
    ],
)
def test_a_wrong_checkpoint_is_refused_and_the_old_weights_serve_on(
    change: str, reason: str, models: dict[str, Path], tmp_path: Path
) -> None:
    with engine_of(models["a"], tmp_path) as engine:
        before = answer(engine, 0)
        answers = Answers(engine)
        path = tmp_path / "gone" if change == "gone" else copied(models["b"], tmp_path / "wrong", change)
        outcome = answers.updated("u", path=str(path), sha256="0" * 64 if change == "digest" else None)
        assert isinstance(outcome, str)
        assert reason in outcome
        assert answer(engine, 0) == before
        told = stats(engine).weights
        assert told is not None
        assert (told.version, told.digest) == (0, None)


def tensors(path: Path, names: Iterator[str] | None = None) -> tuple[NamedTensor, ...]:
    weights = load_file(path / "model.safetensors")
    chosen = weights if names is None else names
    return tuple(NamedTensor(name, "f32", weights[name].shape, weights[name].tobytes()) for name in chosen)


@pytest.mark.parametrize("kernel_set", SETS)
def test_tensors_in_memory_are_as_good_as_a_checkpoint(
    kernel_set: str, models: dict[str, Path], tmp_path: Path
) -> None:
    expected = known(models, tmp_path, kernel_set)
    with engine_of(models["a"], tmp_path, kernel_set) as engine:
        answers = Answers(engine)
        whole = answers.updated("whole", tensors=tensors(models["b"]), label="step-1")
        assert isinstance(whole, WeightStats)
        assert (whole.version, whole.source, whole.label) == (1, "tensors", "step-1")
        assert answer(engine, 0) == expected["b"][0]
        # Layer by layer back to the first model: in between it is neither.
        names = list(load_file(models["a"] / "model.safetensors"))
        layers = [[name for name in names if f"layers.{number}." in name] for number in range(2)]
        rest = [name for name in names if "layers." not in name]
        digests = {whole.digest}
        for number, part in enumerate((*layers, rest)):
            outcome = answers.updated(f"part{number}", tensors=tensors(models["a"], iter(part)))
            assert isinstance(outcome, WeightStats)
            digests.add(outcome.digest)
        assert len(digests) == 4
        assert answer(engine, 0) == expected["a"][0]


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (NamedTensor("lm_head", "f32", (1,), b"0000"), "lm_head is not in the model"),
        (NamedTensor("model.norm.weight", "bf16", (64,), b"00" * 64), "is bf16, and f32 is served"),
        (NamedTensor("model.norm.weight", "f32", (32,), b"0000" * 32), "[32], and [64] is served"),
        (NamedTensor("model.norm.weight", "f32", (64,), b"0000" * 63), "has 252 bytes"),
        (NamedTensor("model.layers.0.self_attn.q_proj.weight", "f32", (64, 64), b"0000" * 4096), "k_proj"),
    ],
)
def test_wrong_tensors_are_refused(tensor: NamedTensor, reason: str, models: dict[str, Path], tmp_path: Path) -> None:
    with engine_of(models["a"], tmp_path) as engine:
        before = answer(engine, 0)
        outcome = Answers(engine).updated("u", tensors=(tensor,))
        assert isinstance(outcome, str)
        assert reason in outcome
        assert answer(engine, 0) == before


def test_an_engine_that_could_not_tell_refuses(tmp_path: Path) -> None:
    from .plans import scripted_plan

    with InprocEngine.from_plan(scripted_plan(tmp_path)) as engine:
        outcome = Answers(engine).updated("u", path="/nowhere")
        assert "cannot be replaced" in str(outcome)


def test_no_memory_for_a_second_copy_is_a_refusal(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_of(models["a"], tmp_path) as engine:
        before = answer(engine, 0)
        monkeypatch.setattr("appliance.kernels.cpu.weights.free_bytes", lambda: 1000)
        outcome = Answers(engine).updated("u", path=str(models["b"]))
        assert "of memory can be had" in str(outcome)
        assert answer(engine, 0) == before


def test_what_a_checkpoint_raises_ends_nothing_else(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with engine_of(models["a"], tmp_path) as engine:
        before = answer(engine, 0)
        answers = Answers(engine)
        for raised, said in ((KeyError("hidden_size"), "'hidden_size'"), (RuntimeError(), "RuntimeError")):

            def read(*_: object, raised: Exception = raised) -> None:
                raise raised

            with monkeypatch.context() as patched:
                patched.setattr("appliance.loading.updates.read_facts", read)
                answers.ask("beside", 0)
                assert answers.updated("u", path="x") == f"the new weights could not be read: {said}"
            assert answers.tokens.pop("beside") == before
        assert "nothing here expects" in caplog.text
        assert isinstance(answers.updated("v", path=str(models["b"])), WeightStats)


def test_a_checkpoint_is_read_as_the_planned_one_is(models: dict[str, Path], tmp_path: Path) -> None:
    """Both have the config that the spec states: the numbers of their own would make other models."""
    changed = copied(models["b"], tmp_path / "changed", "config")
    (tmp_path / "served").mkdir()
    overrides = "model.hf_overrides={rope_theta: 500000.0}"
    with engine_of(changed, tmp_path) as own:
        expected = answer(own, 0)
    with engine_of(models["a"], tmp_path, "auto", overrides) as engine:
        assert isinstance(Answers(engine).updated("u", path=str(models["b"])), WeightStats)
        assert answer(engine, 0) == expected


def test_requests_that_are_held_are_admitted_once_and_as_many_as_may_wait(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_of(models["a"], tmp_path, "auto", "scheduler.max_num_seqs=1", "scheduler.max_waiting=2") as engine:
        answers, admitted = Answers(engine), []
        answers.ask("long", 0, max_tokens=440, ignore_eos=True)
        answers.read()
        answers.update("u", path=str(models["b"]))
        engine._loop._weights.wait(60)  # type: ignore[union-attr] # the engine has changes of weights
        answers.read()
        engine._loop._weights.wait(60)  # type: ignore[union-attr]
        answers.read()
        assert engine._loop._grammars.is_shut
        processors = engine._loop._runner.processors
        admit = processors.admit
        monkeypatch.setattr(processors, "admit", lambda each: (admitted.append(each.request_id), admit(each))[1])
        for name in ("1", "2", "3"):
            answers.ask(name, 1)
        answers.finish()
        assert "2 sequences wait; the limit is 2" in (answers.errors["3"] or "")
        assert [len(answers.tokens[name]) for name in ("1", "2")] == [NUM_TOKENS, NUM_TOKENS]
        assert admitted == ["1", "2"]
