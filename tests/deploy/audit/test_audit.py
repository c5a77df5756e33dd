"""Findings by spec, policies, and the account of open routes against a server that is scanned from outside."""

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from appliance.cli.app import main
from appliance.deploy.audit.exposure import exposed_routes, reach_of
from appliance.deploy.audit.finding import AuditFinding
from appliance.deploy.audit.policy import Policy, PolicyError, load_policy
from appliance.deploy.audit.rules import RULES, audit
from appliance.engine.scripted import Script
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from appliance.server.http.routes import ROUTES
from tests.plan.machines import small_model
from tests.server.harness import example_path, running, write_plan

HASH = "sha256:" + "ab" * 32
HEAD = "api_version: appliance/v1\nkind: Deployment\nname: small\n"
TRUSTED = "decoding: {trust_plugins: true}"
PINNED = f"model: {{source: hf://owner/small, sha256: {'cd' * 32}}}\n"
PUBLIC = "host: 0.0.0.0, allowed_hosts: [a.example]"
KEYS = f"auth: {{keys: [{{name: team, hash: '{HASH}', max_concurrency: 4}}]}}"
TLS = "tls: {certfile: cert.pem, keyfile: key.pem}"
QUIET = f"{HEAD}{PINNED}endpoints: {{http: {{{PUBLIC}, enable_docs: false}}, {KEYS}, {TLS}}}\n"


def findings(folder: Path, text: str, hardware: str = "server-epyc-9654") -> tuple[AuditFinding, ...]:
    spec, facts = folder / "small.yaml", folder / "facts.json"
    spec.write_text(text)
    facts.write_bytes(msgspec.json.encode(small_model()))
    for name in ("cert.pem", "key.pem"):
        (folder / name).touch()
    return audit(prepare(spec, hardware=hardware, model_facts=facts))


def test_a_careful_spec_has_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path, QUIET) == ()
    assert findings(tmp_path, HEAD + PINNED) == ()


@pytest.mark.parametrize(
    ("text", "rule", "gravity"),
    [
        (
            f"{PINNED}endpoints: {{http: {{{PUBLIC}}}, auth: {{allow_public_without_keys: true}}}}",
            "open-network",
            "HIGH",
        ),
        (f"{PINNED}endpoints: {{http: {{{PUBLIC}}}, {KEYS}}}", "plain-text", "MEDIUM"),
        (f"{PINNED}endpoints: {{http: {{allowed_hosts: []}}}}", "any-host", "LOW"),
        (f"{PINNED}endpoints: {{cors: {{allowed_origins: ['*']}}}}", "any-origin", "HIGH"),
        (f"{PINNED}endpoints: {{cors: {{allowed_origins: ['*']}}, {KEYS}}}", "any-origin", "MEDIUM"),
        (
            "model: {source: hf://owner/small, revision: abc, trust_request_chat_template: true}",
            "request-template",
            "HIGH",
        ),
        ("model: {source: hf://owner/small}", "unpinned-model", "MEDIUM"),
        (f"{PINNED}endpoints: {{http: {{middleware: [package.Middleware]}}}}\n{TRUSTED}", "plugin", "MEDIUM"),
        (f"{PINNED}decoding: {{trust_plugins: true, logits_processors: [package.f]}}", "plugin", "MEDIUM"),
        (f"{PINNED}lora: {{resolver: package.find}}\n{TRUSTED}", "plugin", "MEDIUM"),
        (f"{PINNED}endpoints: {{auth: {{keys: [{{name: team, hash: '{HASH}'}}]}}}}", "key-unlimited", "LOW"),
        (f"{PINNED}endpoints: {{auth: {{keys_file: keys.json}}}}", "shared-cache", "LOW"),
        (f"{PINNED}endpoints: {{limits: {{max_body_bytes: 1GiB}}}}", "wide-limit", "LOW"),
        (f"{PINNED}observability: {{logs: {{enable_log_requests: true, max_log_len: null}}}}", "logged-text", "MEDIUM"),
        (f"{PINNED}endpoints: {{http: {{{PUBLIC}}}, {KEYS}, {TLS}}}", "developer-route", "LOW"),
    ],
)
def test_each_rule_finds_its_fault(text: str, rule: str, gravity: str, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    found = {finding.rule: finding for finding in findings(tmp_path, HEAD + text + "\n")}
    assert found[f"audit/{rule}"].gravity.name == gravity
    assert found[f"audit/{rule}"].hint


def test_a_file_of_keys_that_others_may_write_is_found(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text("{}")
    keys.chmod(0o664)
    text = f"{HEAD}{PINNED}endpoints: {{auth: {{keys_file: {keys}}}}}\n"
    assert "audit/keys-writable" in {finding.rule for finding in findings(tmp_path, text)}
    keys.chmod(0o640)
    assert "audit/keys-writable" not in {finding.rule for finding in findings(tmp_path, text)}


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which one compiled kernel is kept."""
    folder = tmp_path / "cache" / "kept"
    (folder / "A").mkdir(parents=True)
    (folder / "A" / "norm.cubin").write_bytes(b"code")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


def test_compiled_kernels_that_others_may_write_are_found(tmp_path: Path, kernels: Path) -> None:
    def is_found(hardware: str = "nvidia-h100-sxm-80g") -> bool:
        return "audit/kernels-writable" in {each.rule for each in findings(tmp_path, HEAD + PINNED, hardware)}

    kernels.chmod(0o755)
    kernels.parent.chmod(0o755)
    assert not is_found()
    kernels.chmod(0o775)
    assert is_found()
    assert not is_found("server-epyc-9654")  # a CPU set loads none
    kernels.chmod(0o755)
    kernels.parent.chmod(0o777)
    assert is_found()
    kernels.parent.chmod(0o1777)  # as /tmp: others cannot replace the folder
    assert not is_found()


@pytest.mark.usefixtures("kernels")
def test_the_verb_says_on_what_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings(tmp_path, HEAD + PINNED)
    command = ["audit", str(tmp_path / "small.yaml"), "--model-facts", str(tmp_path / "facts.json"), "--hardware"]
    main([*command, "nvidia-8xh100-sxm-80g"])
    text = capsys.readouterr().out
    assert "runs on 8 x NVIDIA H100 80GB HBM3 (sm90" in text
    assert "kernels kept: 1 in kept" in text
    main([*command, "nvidia-h100-sxm-80g", "--json"])
    told = json.loads(capsys.readouterr().out)["runs_on"]
    assert told["kept"] == [{"name": "norm.cubin", "sha256": hashlib.sha256(b"code").hexdigest()}]
    assert "PagedAttention[bf16]" in told["implementations"]["cuda: triton"]
    main([*command, "server-epyc-9654"])
    assert "runs on" not in capsys.readouterr().out


def test_a_policy_says_what_fails(tmp_path: Path) -> None:
    found = findings(tmp_path, f"{HEAD}model: {{source: hf://owner/small}}\n")
    assert [finding.rule for finding in found] == ["audit/unpinned-model"]
    assert Policy().failures(found) == ()
    assert Policy(fail_on="medium").failures(found) == found
    assert Policy(fail_on="medium", allow=("audit/unpinned-model",)).failures(found) == ()
    assert Policy(deny=("audit/unpinned-model",)).failures(found) == found


@pytest.mark.parametrize("text", ["fail_on: never", "fail: high", "[", "- 1"])
def test_a_wrong_policy_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=r"policy\.yaml"):
        load_policy(path)


def test_the_verb_answers_two_when_the_policy_forbids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings(tmp_path, f"{HEAD}model: {{source: hf://owner/small}}\n")
    command = ["audit", str(tmp_path / "small.yaml"), "--hardware", "server-epyc-9654"]
    command += ["--model-facts", str(tmp_path / "facts.json")]
    assert main(command) == 0
    assert "note  medium  audit/unpinned-model" in capsys.readouterr().out
    policy = tmp_path / "policy.yaml"
    policy.write_text("fail_on: low\n")
    assert main([*command, "--policy", str(policy), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["reach"] == "machine"
    assert told["findings"][0]["fails"] is True


@pytest.mark.parametrize("changes", [{}, {"key_hashes": {"team": HASH}}, {"docs": False, "apis": ["openai"]}])
def test_the_account_of_routes_is_what_a_scan_finds(changes: dict[str, Any], tmp_path: Path) -> None:
    plan = msgspec.json.decode(write_plan(tmp_path, Script(), **changes).read_bytes(), type=EnginePlan)
    told = {(route.path, method): route.callers for route in exposed_routes(plan.serving) for method in route.methods}
    with running(tmp_path, Script(), **changes) as server, server.http() as client:
        for route in ROUTES:
            for method in route.methods:
                answer = client.request(method, example_path(route), json={} if method == "POST" else None)
                callers = told.get((route.path, method))
                hidden = ("nobody", "key") if "key_hashes" in changes else ("nobody",)  # the gate is before the routes
                assert _seen(answer) in ((callers,) if callers else hidden), (route.path, method, answer.text)


def _code(answer: httpx.Response) -> str:
    """Returns the code of an error in OpenAI's shape; Anthropic's has none, so its type and the end of its message."""
    error = answer.json()["error"]
    return str(error["code"] if "code" in error else f"{error['type']}: {error['message'].rpartition(': ')[2]}")


def _seen(answer: httpx.Response) -> str:
    """Returns who may call, judged by the answer to a caller without a key."""
    if answer.status_code == 401:
        return "key"
    words = ("unknown_path", "not_served", "method_not_allowed", "not_found_error: not found")
    is_absent = answer.status_code in (404, 405) and _code(answer).partition(";")[0] in words
    return "nobody" if is_absent else "anyone"


@pytest.mark.parametrize(
    ("host", "reach"),
    [
        ("127.0.0.1", "machine"),
        ("localhost", "machine"),
        ("::1", "machine"),
        ("0.0.0.0", "network"),
        ("10.0.0.1", "network"),
    ],
)
def test_the_reach_is_that_of_the_address(host: str, reach: str, tmp_path: Path) -> None:
    plan = msgspec.json.decode(write_plan(tmp_path, Script()).read_bytes(), type=EnginePlan)
    assert reach_of(msgspec.structs.replace(plan.serving.listen, host=host)) == reach


def test_every_rule_is_in_the_table() -> None:
    assert len({rule.__name__ for rule in RULES}) == len(RULES)
