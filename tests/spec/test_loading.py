"""Overrides, interpolation, secrets, positions."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.errors import SpecError
from appliance.spec import LoadedSpec, iter_set_fields, load_spec, load_text
from appliance.spec.paths import format_path, parse_path

BASE = """\
api_version: appliance/v1
kind: Deployment
name: small
model:
  source: hf://owner/model
"""


def load(extra: str = "", *overrides: str, **environ: str) -> LoadedSpec:
    return load_text(BASE + extra, "small.yaml", overrides, environ)


def rules(extra: str = "", *overrides: str, **environ: str) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as raised:
        load(extra, *overrides, **environ)
    return [(found.rule, found.file) for found in raised.value.diagnostics]


def test_values_are_typed() -> None:
    spec = load("cache: {block_size: 16}\nscheduler: {max_num_batched_tokens: 2K}\nshutdown: {timeout: 1m}\n").spec
    assert (spec.cache.block_size, spec.scheduler.max_num_batched_tokens, spec.shutdown.timeout) == (16, 2048, 60.0)
    assert spec.hardware.memory.utilization == 0.9
    assert spec.lora is None


def test_positions_are_of_values() -> None:
    loaded = load("cache: {block_size: 16}\nlora:\n  adapters:\n    - {name: a, source: ./a}\n")
    assert loaded.positions["cache.block_size"] == (6, 21)
    assert loaded.positions["lora.adapters[0].source"] == (9, 25)
    assert loaded.keys["cache"] == (6, 1)


def test_a_later_pass_can_place_its_findings() -> None:
    loaded = load("cache: {block_size: 16}\n")
    found = loaded.diagnostic("cache.block_size", "plan/x", "too small", hint="more")
    assert (found.line, found.column, found.value, found.file) == (6, 21, 16, "small.yaml")
    assert found.source_line == "cache: {block_size: 16}"
    unwritten = loaded.diagnostic("cache.dtype", "plan/x", "no")
    assert (unwritten.line, unwritten.column) == (6, 1)
    assert loaded.is_set("cache")
    assert not loaded.is_set("cache.dtype")


def test_the_last_override_wins() -> None:
    loaded = load("cache: {block_size: 16}\n", "cache.block_size=64", APPLIANCE__CACHE__BLOCK_SIZE="32")
    assert loaded.spec.cache.block_size == 64
    assert [(each.kind, each.origin) for each in loaded.sources] == [
        ("env", "APPLIANCE__CACHE__BLOCK_SIZE"),
        ("set", "--set cache.block_size"),
    ]
    found = loaded.diagnostic("cache.block_size", "plan/x", "no")
    assert (found.file, found.line) == ("--set cache.block_size", 1)


def test_overrides_make_sections_and_reach_items() -> None:
    loaded = load("lora: {adapters: [{name: a, source: ./a}]}\n", "lora.adapters[0].name=b", "slo={ttft_p95: 1s}")
    assert loaded.spec.lora is not None
    assert loaded.spec.lora.adapters[0].name == "b"
    assert loaded.spec.slo.ttft_p95 == 1.0


def test_an_override_may_mend_the_file() -> None:
    assert load("cache: {block_size: 24}\n", "cache.block_size=32").spec.cache.block_size == 32


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("cache.block_size=24", "value/choice"),
        ("cache.blok=24", "spec/unknown-key"),
        ("lora.adapters[3].name=x", "override/path"),
        ("model.mirrors[0].x=1", "override/path"),
        ("cache.dtype={", "yaml/syntax"),
        ("shutdown.timeout=", "value/null"),
        ("endpoints.http.host=0.0.0.0", "endpoints/public"),
    ],
)
def test_wrong_overrides_name_themselves(override: str, rule: str) -> None:
    name = override.partition("=")[0]
    assert rules("", override) == [(rule, f"--set {name}")]


def test_wrong_variables_name_themselves() -> None:
    assert rules(APPLIANCE__CASH__SIZE="1") == [("spec/unknown-key", "APPLIANCE__CASH__SIZE")]


@pytest.mark.parametrize("text", ["cache.block_size", "=3", "cache..x=1", "[0=1"])
def test_overrides_have_a_form(text: str) -> None:
    assert [rule for rule, _ in rules("", text)] == ["override/form"]


def test_a_file_may_refuse_overrides() -> None:
    found = rules("overrides: none\n", "cache.block_size=32", APPLIANCE__NAME="x")
    assert sorted(found) == [("override/refused", "--set cache.block_size"), ("override/refused", "APPLIANCE__NAME")]


def test_interpolation(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("12345\n")
    file = tmp_path / "spec.yaml"
    lines = [
        'description: "$${env:NO} ${env:A:?say why}"',
        'loading: {hf_token: "${file:token}"}',
        'endpoints: {http: {port: "${env:PORT}"}}',
        "cache:\n  prefix_caching: ${env:CACHING}",
        "x-note: ${env:A}",
    ]
    file.write_text(BASE + "\n".join(lines) + "\n")
    loaded = load_spec(file, environ={"A": "x", "PORT": "9000", "CACHING": "false"})
    assert loaded.spec.description == "${env:NO} x"
    assert loaded.spec.endpoints.http.port == 9000
    assert loaded.spec.cache.prefix_caching is False
    assert loaded.spec.loading.hf_token is not None
    assert loaded.spec.loading.hf_token.get_secret_value() == "12345"


def test_a_wrong_interpolated_value_is_masked() -> None:
    with pytest.raises(SpecError, match=r"port cannot be '\*\*\*'") as raised:
        load("endpoints:\n  http:\n    port: ${env:PORT}\n", PORT="sk-hidden")
    assert "sk-hidden" not in raised.value.report()
    assert "${env:PORT}" in raised.value.report()


def test_secrets_are_masked_everywhere() -> None:
    loaded = load("loading: {hf_token: abc}\ndescription: ${env:WORD}\n", WORD="hush")
    assert "hush" not in str(loaded.resolved())
    assert "abc" not in str(loaded.resolved()) + repr(loaded.spec.loading)
    assert loaded.value("description") == "***"
    assert loaded.diagnostic("description", "r", "m").value == "***"
    found = loaded.diagnostic("loading.hf_token", "r", "m")
    assert "abc" not in str(found.to_dict())


def test_the_digest_follows_values_and_not_secrets_or_layout() -> None:
    plain = load("cache: {block_size: 16}\n").sha256
    assert load("# a comment\ncache:\n  block_size: 16\n").sha256 == plain
    assert load("cache: {block_size: 32}\n").sha256 != plain
    assert load("loading: {hf_token: a}\n").sha256 == load("loading: {hf_token: b}\n").sha256
    assert load("description: ${env:A}\n", A="1").sha256 != load("description: ${env:A}\n", A="2").sha256


def test_a_wrong_secret_is_not_shown() -> None:
    with pytest.raises(SpecError) as raised:
        load("loading: {hf_token: [sk-hidden]}\n")
    assert "sk-hidden" not in raised.value.report()


def test_rules_do_not_show_interpolated_values() -> None:
    with pytest.raises(SpecError) as raised:
        load('endpoints: {http: {host: "${env:HOST}"}}\n', HOST="hidden.example")
    assert "hidden" not in raised.value.report()
    assert [found.rule for found in raised.value.diagnostics] == ["endpoints/public"]


UNBUILT = "enable_multimodal_encoder_data_parallel"


def test_set_fields() -> None:
    loaded = load(
        f"parallelism: {{{UNBUILT}: true, tensor: 1}}\n"
        "lora: {default_mm_loras: {image: a}}\ncache: {dtype: auto}\nx-note: 1\n"
    )
    found = {each.path: each for each in iter_set_fields(loaded)}
    assert list(found)[-3:] == [f"parallelism.{UNBUILT}", "cache.dtype", "lora.default_mm_loras"]
    assert not found[f"parallelism.{UNBUILT}"].can_run
    assert found["parallelism.tensor"].can_run
    assert not found["lora.default_mm_loras"].can_run
    assert found[f"parallelism.{UNBUILT}"].position == (6, 56)
    assert found["cache.dtype"].doc.vllm == "kv_cache_dtype"


def test_items_of_lists_are_set_fields() -> None:
    loaded = load("bench: {scenarios: [{name: a}, {name: b, seed: 3}]}\n")
    paths = [each.path for each in iter_set_fields(loaded)]
    assert paths[-3:] == ["bench.scenarios[0].name", "bench.scenarios[1].name", "bench.scenarios[1].seed"]


def test_merge_keys() -> None:
    text = "x-a: &a {block_size: 16, dtype: bfloat16}\ncache: {<<: *a, block_size: 32}\n"
    spec = load(text).spec
    assert (spec.cache.block_size, spec.cache.dtype) == (32, "bfloat16")


def test_yaml_1_2_words() -> None:
    loaded = load("description: no\n")
    assert loaded.spec.description == "no"
    assert load("description: 2026-01-01\n").spec.description == "2026-01-01"


@given(st.lists(st.one_of(st.text(min_size=1), st.integers(min_value=0, max_value=99)), min_size=1))
def test_paths_read_back(parts: list[str | int]) -> None:
    path = tuple(parts)
    assert parse_path(format_path(path)) == path
