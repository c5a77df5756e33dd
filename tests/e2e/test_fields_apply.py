"""The class of a field is what is seen to happen: processes, KV cache, and the new value in effect."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.base.errors import SpecError
from appliance.base.hashing import key_hash
from appliance.deploy.execute import ApplyResult, DesiredState, stop
from appliance.deploy.observe import observe
from appliance.deploy.process import ProcessId, descendants
from appliance.deploy.reconcile import Verb, changes, reconcile
from appliance.deploy.state import DeploymentState
from appliance.plan.compile import run_passes
from appliance.plan.key_file import write_key_file
from appliance.plan.prepare import prepare
from appliance.spec import load_text
from appliance.spec.tree import walk
from tests.deploy.applying import apply
from tests.deploy.test_classes import BY_PATH, UNCHANGED, VARIED, others
from tests.e2e.conftest import free_port
from tests.e2e.served import make_random_model

SPEC = f"""\
api_version: appliance/v1
kind: Deployment
name: random
model: {{source: ./model, served_names: [base, second], max_model_len: 1024}}
hardware: {{memory: {{kv_cache: 8MiB}}}}
scheduler: {{policy: priority}}
speculative: {{method: suffix}}
lora: {{max_cpu_loras: 1}}
endpoints:
  http: {{port: %d}}
  apis: [openai, responses]
  auth:
    keys:
      - {{name: a, hash: "{key_hash("one")}"}}
      - {{name: operator, hash: "{key_hash("operator")}"}}
"""
KEY_A, OPERATOR = {"x-api-key": "one"}, {"x-api-key": "operator"}
ORIGIN = {"origin": "https://x.example", "access-control-request-method": "PUT"}
PROMPT = "a prompt that the prefix cache keeps, for it is longer than some of its blocks together"


@dataclass
class Asker:
    url: str
    log: Path

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=OPERATOR | headers, timeout=30.0)

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=OPERATOR | headers, timeout=30.0)

    def complete(self, **more: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": "base", "prompt": "x", "max_tokens": 1} | more)

    def chat(self, **more: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hello"}]
        return self.post("/v1/chat/completions", {"model": "base", "messages": messages, "max_tokens": 2} | more)

    def as_a(self, model: str = "base") -> list[int]:
        body = {"model": model, "prompt": "x", "max_tokens": 1}
        return [self.post("/v1/completions", body, **KEY_A).status_code for _ in range(3)]

    def preflight(self, name: str) -> str | None:
        found = httpx.options(self.url + "/v1/models", headers=ORIGIN | {"access-control-request-headers": "x-mine"})
        return found.headers.get(f"access-control-allow-{name}")

    def logged(self, word: str) -> bool:
        """Returns whether one more request writes a line with this word."""
        before = self._quiet_log()
        self.complete()
        return word in self._quiet_log()[len(before) :]

    def _quiet_log(self) -> str:
        """The log once nothing was added for a while: lines of a request may follow its answer."""
        text, seen = self.log.read_text(), None
        while text != seen:
            time.sleep(0.3)
            text, seen = self.log.read_text(), text
        return text

    def has_target(self, name: str) -> bool:
        lines = self.get("/metrics").text.splitlines()
        return any(line.startswith("appliance_slo_target_seconds{") and f'"{name}"' in line for line in lines)


def status(path: str) -> Callable[[Asker], Any]:
    return lambda asker: asker.get(path).status_code


@dataclass(frozen=True)
class Effect:
    """`seen` differs once `value` holds. `given` as of field_values.Other."""

    value: str
    seen: Callable[[Asker], Any]
    given: tuple[str, ...] = ()


_CORS = ("endpoints.cors.allowed_origins=[https://x.example]",)
EFFECTS: dict[str, Effect] = {
    "strictness": Effect("allow", lambda a: a.complete(unheard_of=1).status_code),
    "degradations": Effect("{ignored_field: allow}", lambda a: a.complete(unheard_of=1).status_code),
    "model.served_names": Effect("[base, third]", lambda a: a.get("/v1/models").json()["data"][1]["id"]),
    "model.max_logprobs": Effect("2", lambda a: a.complete(logprobs=4).status_code),
    "model.chat_template": Effect("'{{ messages[0].content }}'", lambda a: a.chat().json()["usage"]["prompt_tokens"]),
    "model.trust_request_chat_template": Effect("true", lambda a: a.chat(chat_template="x").status_code),
    "model.response_role": Effect("bard", lambda a: a.chat().json()["choices"][0]["message"]["role"]),
    "decoding.structured_output": Effect("none", lambda a: a.chat(response_format={"type": "json_object"}).status_code),
    "decoding.override_generation_config": Effect(
        "{max_new_tokens: 3}", lambda a: a.post("/v1/completions", {"model": "base", "prompt": "x"}).json()["usage"]
    ),
    "endpoints.http.allowed_hosts": Effect("[x.example]", status("/v1/models")),
    "endpoints.http.enable_request_id_headers": Effect(
        "true", lambda a: a.get("/version", **{"x-request-id": "mine"}).headers.get("x-request-id")
    ),
    "endpoints.http.enable_docs": Effect("false", status("/openapi.json")),
    "endpoints.http.enable_offline_docs": Effect("true", status("/docs/offline")),
    "endpoints.http.enable_page": Effect("false", status("/plan")),
    "endpoints.http.enable_server_load_tracking": Effect("true", status("/load")),
    "endpoints.http.enable_tokenizer_info_endpoint": Effect("true", status("/tokenizer_info")),
    "endpoints.apis": Effect("[openai]", lambda a: a.post("/v1/responses", {}).status_code),
    "endpoints.responses.enable_force_include_usage": Effect(
        "true", lambda a: "completion_tokens" in a.complete(stream=True).text
    ),
    "endpoints.responses.enable_prompt_tokens_details": Effect(
        "false", lambda a: "cached_tokens" in a.complete(prompt=PROMPT).text
    ),
    "endpoints.responses.return_tokens_as_token_ids": Effect(
        "true", lambda a: "token_id:" in a.complete(logprobs=1).text
    ),
    "endpoints.responses.per_request_spec_decode_metrics": Effect(
        "summary",
        lambda a: "speculative_decoding" in a.complete(max_tokens=24, logit_bias={"5": 100}).text,
        ("speculative.adaptive=false",),  # every draft is verified, whatever it costs
    ),
    "endpoints.auth.keys[].hash": Effect(f"'{key_hash('two')}'", lambda a: a.as_a()),
    "endpoints.auth.keys[].models": Effect("[base]", lambda a: a.as_a("second")),
    "endpoints.auth.keys[].requests_per_minute": Effect("1", lambda a: a.as_a()),
    "endpoints.auth.keys[].tokens_per_minute": Effect("3", lambda a: a.as_a()),
    "endpoints.limits.max_body_bytes": Effect("1KiB", lambda a: a.complete(prompt="x" * 2000).status_code),
    "endpoints.limits.max_header_bytes": Effect("1KiB", lambda a: a.get("/version", mine="x" * 2000).status_code),
    "endpoints.limits.max_headers": Effect(
        "12", lambda a: a.get("/version", **{f"x-{n}": "1" for n in range(12)}).status_code
    ),
    "endpoints.limits.max_n": Effect("2", lambda a: a.complete(n=3).status_code),
    "endpoints.cors.allowed_origins": Effect("[https://x.example]", lambda a: a.preflight("origin")),
    "endpoints.cors.allowed_methods": Effect("[PUT]", lambda a: a.preflight("methods"), _CORS),
    "endpoints.cors.allowed_headers": Effect("[x-other]", lambda a: a.preflight("headers"), _CORS),
    "endpoints.cors.allow_credentials": Effect("true", lambda a: a.preflight("credentials"), _CORS),
    "observability.logs.level": Effect(
        "error", lambda a: a.logged("\n"), ("observability.logs.enable_log_requests=true",)
    ),
    "observability.logs.enable_log_requests": Effect("true", lambda a: a.logged("\n")),
    "observability.logs.enable_access_log": Effect("true", lambda a: a.logged("/v1/completions")),
    "lora.allow_runtime_updating": Effect("true", lambda a: a.post("/v1/load_lora_adapter", {}).status_code),
    "lora.allow_request_scale": Effect("true", lambda a: a.complete(lora=[{"id": 0}]).json()["error"]["param"]),
    "lora.resolver": Effect(
        "tests.server.resolvers.find",
        lambda a: a.complete(model="mine/lost").json()["error"]["param"],
        ("decoding.trust_plugins=true",),
    ),
    "observability.profiler_dir": Effect("./profiles", lambda a: a.post("/stop_profile", {}).status_code),
    "observability.metrics.enabled": Effect("false", status("/metrics")),
    **{
        f"slo.{metric}_p{rank}": Effect("7s", lambda a, name=f"{metric}_p{rank}": a.has_target(name))  # type: ignore[misc]  # mypy sees no default of a lambda
        for metric in ("ttft", "tpot", "e2el")
        for rank in (50, 90, 95, 99)
    },
}
RARE = "seconds, or many connections, would have to pass for it to show"
ELSEWHERE: dict[str, str] = {
    "model.special_tokens_in_messages": "tests/server/test_special_tokens.py",
    "model.chat_template_content_format": "tests/server/test_chat.py",
    "decoding.disable_any_whitespace": "tests/server/test_structured.py",
    "decoding.disable_additional_properties": "tests/server/test_structured.py",
    "decoding.tool_parser": "tests/server/test_tools.py",
    "decoding.enable_auto_tool_choice": "tests/server/test_tools.py",
    "decoding.exclude_tools_when_tool_choice_none": "tests/server/test_tools.py",
    "decoding.reasoning_parser": "tests/server/test_tools.py",
    "decoding.reasoning_parser_plugin": "tests/server/test_plugins.py",
    **{f"decoding.tool_server[].{name}": "tests/server/mcp and tests/server/test_server_tools.py" for name in (
        "name", "command", "url", "env", "headers", "allowed_tools", "timeout", "max_result_bytes", "max_calls",
    )},
    "endpoints.auth.keys[].name": "shown in logs alone",
    "endpoints.auth.keys[].max_concurrency": "tests/server/test_keys.py",
    "endpoints.auth.keys[].priority": "tests/server/test_keys.py",
    "endpoints.auth.keys_file": "tests/server/test_keys.py",
    "endpoints.auth.isolate_caches": "tests/server/test_keys.py",
    "endpoints.http.root_path": "tests/server/test_frontend.py",
    "endpoints.http.keep_alive": RARE,
    "endpoints.limits.header_timeout": RARE,
    "endpoints.limits.body_timeout": RARE,
    "endpoints.limits.write_timeout": RARE,
    "endpoints.limits.max_connections": RARE,
    "observability.logs.enable_log_outputs": "tests/server/test_frontend.py",
    "observability.logs.max_log_len": "tests/server/test_frontend.py",
    "observability.traces.otlp_traces_endpoint": "tests/server/test_traces.py",
    "observability.traces.sampling_ratio": "tests/server/test_traces.py",
    "observability.traces.service_name": "tests/server/test_traces.py",
    "observability.traces.collect_detailed_traces": "tests/server/test_traces.py",
    **{f"scheduler.{each}": "tests/engine/test_scheduler.py, tests/deploy/test_live.py" for each in (
        "max_num_partial_prefills", "max_long_partial_prefills", "long_prefill_token_threshold", "max_waiting",
    )},
    "slo.shed_factor": "tests/server/test_slo.py",
    **{f"slo.gate.{each}": "tests/deploy/test_gate.py: it holds from the next generation on" for each in (
        "num_prompts", "max_concurrency", "input_len", "output_len",
    )},
    **{f"restart.{each}": "tests/service: the engine would have to fail" for each in (
        "policy", "max_restarts", "window", "backoff", "heartbeat_timeout",
    )},
    **{f"speculative.{each}": "tests/engine/test_draft_choice.py, tests/engine/test_speculating_engine.py" for each in (
        "enabled", "num_tokens", "adaptive", "disable_by_batch_size",
    )},
    "shutdown.timeout": "the server would have to end",
}  # fmt: skip
_TLS = "endpoints.tls."  # this deployment's listener has none; tests/deploy/test_live.py has one with certificates
LIVE = [
    each.path
    for each in VARIED
    if each.doc.apply == "live" and each.path not in UNCHANGED and not each.path.startswith(_TLS)
]
# Of the other classes a sample is carried out: what each says of the server's and the engine's process.
SAMPLES = ("scheduler.max_num_seqs=4", "cache.prefix_caching=false", "endpoints.http.port=%d")


@dataclass
class Deployment:
    folder: Path
    state: DeploymentState
    text: str = field(default_factory=lambda: SPEC % free_port())

    def __post_init__(self) -> None:
        (self.folder / "model").mkdir()
        make_random_model(self.folder / "model")
        (self.folder / "spec.yaml").write_text(self.text)
        self._inputs = prepare(self.folder / "spec.yaml").inputs

    def wanted(self, *overrides: str) -> DesiredState:
        loaded = load_text(self.text, "spec.yaml", overrides, {})
        template = loaded.spec.model.chat_template
        files = replace(self._inputs.files, chat_template=template)
        outcome = run_passes(replace(self._inputs, loaded=loaded, files=files))
        assert not outcome.ledger.refusals, outcome.ledger.refusals
        return DesiredState(plan=outcome.plan, spec_file="spec.yaml", spec_text=self.text)

    def another(self, path: str) -> tuple[tuple[str, ...], str] | None:
        """What is given, and an override to it that changes the plan; None where this machine or model allows none."""
        at = path.replace("[]", "[0]")
        if (effect := EFFECTS.get(path)) is not None:
            return effect.given, f"{at}={effect.value}"
        if path == "endpoints.auth.keys_file":
            write_key_file(self.folder / "keys.json", [])
            return (), f"{at}={self.folder / 'keys.json'}"
        for given, override in others(BY_PATH[path.replace("[]", "")]):
            try:
                if changes(self.wanted(*given).plan, self.wanted(*given, override).plan):
                    return given, override
            except (SpecError, AssertionError):
                continue
        return None

    def apply(self, *overrides: str) -> ApplyResult:
        return apply(self.state, self.wanted(*overrides))


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # of the server, for a resolver of ours
    state = DeploymentState(tmp_path / "state", "random")
    state.create()
    yield Deployment(tmp_path, state)
    if (current := state.current()) is not None:
        stop(state, current, None)


def family(result: ApplyResult) -> list[ProcessId]:
    return [result.current.process, *descendants(result.current.process)]


def test_every_live_field_says_how_it_is_seen() -> None:
    assert set(EFFECTS).isdisjoint(ELSEWHERE)
    assert set(EFFECTS) | set(ELSEWHERE) == set(LIVE)
    assert set(LIVE) <= {found.path for found in walk()}


def test_every_live_field_keeps_processes_and_cache_and_holds(deployment: Deployment) -> None:
    first = deployment.apply()
    kept, asker = family(first), Asker(first.current.url, deployment.state.generation(1).log_path)
    asker.complete(prompt=PROMPT)
    wrong: dict[str, str] = {}
    for path in LIVE:
        found = deployment.another(path)
        assert found is not None, path
        given, override = found
        deployment.apply(*given)
        effect = EFFECTS.get(path)
        before = effect.seen(asker) if effect else None
        result = deployment.apply(*given, override)
        others = set(family(result)) - set(kept)  # at most the one in which grammars are tried
        if result.how != "reload" or not set(kept) <= set(family(result)) or len(others) > 1:
            wrong[path] = f"{result.how}, and {family(result)} run"
        elif effect is not None and (after := effect.seen(asker)) == before:
            wrong[path] = f"{after} before and after"
    deployment.apply("endpoints.responses.enable_prompt_tokens_details=true")
    assert wrong == {}
    usage = asker.complete(prompt=PROMPT).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0  # from before the first change


def test_other_classes_change_processes(deployment: Deployment) -> None:
    """All by what the reconciler says of the running server; a sample by what is seen."""
    before = family(deployment.apply())
    seen = observe(deployment.state)
    num_varied = 0
    for each in VARIED:
        if each.doc.apply not in ("drain", "restart") or each.path in UNCHANGED:
            continue
        if (found := deployment.another(each.path)) is not None:
            given, override = found
            one = replace(seen, plan=deployment.wanted(*given).plan)
            [action] = reconcile(one, deployment.wanted(*given, override).plan)
            assert (action.verb, action.apply) == (Verb.SWAP, each.doc.apply), each.path
            num_varied += 1
    assert num_varied >= 30  # test_classes.py varies all, on a machine of its own
    for override in SAMPLES:
        result = deployment.apply(override % free_port() if "%" in override else override)
        assert result.how == "beside"
        assert set(family(result)).isdisjoint(before), override
        before = family(result)
