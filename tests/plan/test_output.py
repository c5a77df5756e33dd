"""What people and tools see: text, JSON, the schema, the verb and its exit codes, the comparison with reality."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from appliance.base.errors import ApplianceError
from appliance.cli import plan as plan_verb
from appliance.cli.arguments.machine import PlanArguments
from appliance.hardware import HardwareFacts
from appliance.plan.boot import BootReport, compare_boot, read_boot_report
from appliance.plan.prepare import CannotRunError, find_machine, prepare
from appliance.plan.render import render_comparison, render_json, render_text
from appliance.plan.schema import FILE_NAME, schema_text
from appliance.plan.types import EnginePlan

from .machines import MODEL, load, machine, plan, qwen, small_model, write_spec

ROOT = Path(__file__).parent.parent.parent
REPORT = BootReport(seconds={"weights": 1.5}, memory_bytes={"weights": 100 << 20, "kv_cache": 1 << 30}, num_blocks=4)


def test_schema_is_fresh() -> None:
    assert (ROOT / "schemas" / FILE_NAME).read_text() == schema_text()


def test_plans_satisfy_their_schema() -> None:
    jsonschema.validate(json.loads(render_json(plan(load(), qwen()))), json.loads(schema_text()))


def test_a_plan_of_an_older_shape_is_refused_and_not_read_with_defaults() -> None:
    found = json.loads(render_json(plan(load(), qwen())))
    serving = found["serving"]
    assert msgspec.convert(found, EnginePlan).serving.listen.port == 8000
    flat = {name: value for record in serving.values() if isinstance(record, dict) for name, value in record.items()}
    with pytest.raises(msgspec.ValidationError, match="serving"):
        msgspec.convert({**found, "serving": flat}, EnginePlan)


def test_text_is_one_screen_and_explain_adds_to_it() -> None:
    found = plan(load(), qwen())
    short, long = render_text(found), render_text(found, explain=True)
    assert len(short.splitlines()) <= 32
    assert long.startswith(short)
    assert all(decision.path in long for decision in found.decisions)
    assert "this CPU has no amx_bf16" in long


def test_text_says_how_much_of_the_cache_is_resident_ahead() -> None:
    loaded = load(MODEL, "cache.prefault=16MiB")
    assert " blocks of 16 tokens in bf16, 86 of them resident ahead, prefix" in render_text(plan(loaded, qwen()))
    assert "resident" not in render_text(plan(load(MODEL, "cache.prefault=0B"), qwen()))


def run(spec: str, *, model_facts: Path | None = None, **given: Any) -> int:
    given = {"hardware": "server-epyc-9654", **given}
    return plan_verb.run(PlanArguments(spec=spec, model_facts=model_facts, **given))


@pytest.fixture
def facts_file(tmp_path: Path) -> Path:
    path = tmp_path / "facts.json"
    path.write_bytes(msgspec.json.encode(small_model()))
    return path


def test_verb_plans_a_checkpoint_that_is_not_here(
    tmp_path: Path, facts_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = str(write_spec(tmp_path, MODEL))
    assert run(spec, model_facts=facts_file, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["hardware"] == "server-epyc-9654"
    assert run(spec, overrides=("scheduler.max_num_seqs=2",), model_facts=facts_file) == 0
    assert "up to 2 sequences" in capsys.readouterr().out


def test_verb_answers_its_exit_codes(tmp_path: Path, facts_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = str(write_spec(tmp_path, MODEL + "parallelism: {enable_multimodal_encoder_data_parallel: true}\n"))
    assert run(bad, model_facts=facts_file) == 2
    assert "parallelism.enable_multimodal_encoder_data_parallel is not in this version" in capsys.readouterr().err
    large = str(write_spec(tmp_path, MODEL + "hardware: {memory: {kv_cache: 9TiB}}\n"))
    assert run(large, model_facts=facts_file, as_json=True) == 3
    assert json.loads(capsys.readouterr().out)["diagnostics"][0]["rule"] == "plan/fit"
    assert run(large, hardware="no-such-machine", model_facts=facts_file) == 3
    assert run(str(write_spec(tmp_path, MODEL))) == 1
    assert "Traceback" not in capsys.readouterr().err


def with_torch(name: str, version: str) -> HardwareFacts:
    return msgspec.structs.replace(machine(name), torch=version)


def test_what_cannot_run_is_planned_but_refused_to_run(
    tmp_path: Path, facts_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path, MODEL)
    monkeypatch.setattr("appliance.plan.prepare.probe_machine", lambda: with_torch("amd-mi300x-192g", "2.13.0+cpu"))
    on_rocm = ["hardware.device=rocm"]
    planned = prepare(spec, overrides=on_rocm, model_facts=facts_file, to_run=False).plan
    assert planned.cannot_run
    with pytest.raises(
        CannotRunError, match=r"rocm cannot run: it needs a torch for rocm, and 2\.13\.0\+cpu"
    ) as caught:
        prepare(spec, overrides=on_rocm, model_facts=facts_file)
    assert caught.value.exit_code == 2


def test_this_machine_is_planned_on_what_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, device in (("", "cpu"), ("2.13.0+cpu", "cpu"), ("2.13.0", "cuda"), ("2.13.0+cu128", "cuda")):
        monkeypatch.setattr("appliance.plan.prepare.probe_machine", partial(with_torch, "nvidia-l4-24g", version))
        assert find_machine(load().spec, None).profile.device == device
    assert find_machine(load().spec, "nvidia-l4-24g").profile.device == "cuda"


def test_boot_report_is_read_from_a_status_file(tmp_path: Path) -> None:
    folder = tmp_path / "generations" / "1"
    folder.mkdir(parents=True)
    body = msgspec.json.encode({"time": 1.0, "event": "boot", **msgspec.to_builtins(REPORT)})
    (folder / "status.jsonl").write_bytes(b'{"time":0.5,"event":"process","pid":1}\n' + body + b"\n")
    assert read_boot_report(tmp_path) == REPORT
    (tmp_path / "boot.json").write_bytes(msgspec.json.encode(REPORT))
    assert read_boot_report(tmp_path / "boot.json") == REPORT
    with pytest.raises(ApplianceError, match="no boot report"):
        read_boot_report(tmp_path / "elsewhere")


def test_verify_compares_within_a_tenth(tmp_path: Path, facts_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = str(write_spec(tmp_path, MODEL))
    found = plan(load())
    planned = {item.name: item.size_bytes for item in found.memory[0].items}
    for factor, code in ((1.05, 0), (1.5, 2)):
        memory = {name: int(size * factor) for name, size in planned.items() if name != "margin"}
        report = BootReport(seconds={}, memory_bytes=memory, num_blocks=found.cache.num_blocks)
        (tmp_path / "boot.json").write_bytes(msgspec.json.encode(report))
        place = str(tmp_path / "boot.json")
        assert run(spec, hardware="laptop-ryzen-7-7840u", model_facts=facts_file, boot_report=Path(place)) == code
    assert "more than 10 % off" in capsys.readouterr().out


def test_comparison_shows_every_item() -> None:
    rows = compare_boot(plan(load(), qwen()), REPORT)
    assert [row.name for row in rows] == ["weights", "logit_screen", "kv_cache", "activations", "workspace", "total"]
    assert not rows[0].is_close
    assert "planned" in render_comparison(rows)


def test_planning_imports_no_torch() -> None:
    code = "import sys; import appliance.cli.plan; print([*sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "'torch'" not in shown.stdout
    assert "'transformers'" not in shown.stdout
