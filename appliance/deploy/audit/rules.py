"""The rules. Each looks at one thing and yields what it finds."""

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.checkpoint.tensorizer_key import FIELD
from appliance.deploy.audit.exposure import reach_of
from appliance.deploy.audit.finding import AuditFinding, Gravity
from appliance.deploy.kernels_record import planned_folder
from appliance.plan.prepare import Prepared
from appliance.plan.serving_types import ServingPlan
from appliance.plan.types import EnginePlan
from appliance.spec.plugins import named_plugins

LARGE_BODY_BYTES: Final = 64 << 20
MANY_SEQUENCES: Final = 128
LONG_WAIT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class AuditSubject:
    prepared: Prepared

    @property
    def plan(self) -> EnginePlan:
        return self.prepared.plan

    @property
    def serving(self) -> ServingPlan:
        return self.prepared.plan.serving

    @property
    def is_public(self) -> bool:
        return reach_of(self.serving.listen) == "network"


Rule = Callable[[AuditSubject], Iterator[AuditFinding]]


def open_network(subject: AuditSubject) -> Iterator[AuditFinding]:
    if subject.is_public and not subject.serving.auth.has_keys:
        message = f"anyone who reaches {subject.serving.listen.host}:{subject.serving.listen.port} may use the model"
        hint = "add endpoints.auth.keys; `appliance keys new` makes one"
        yield AuditFinding("audit/open-network", Gravity.HIGH, "endpoints.auth.keys", message, hint)


def plain_text(subject: AuditSubject) -> Iterator[AuditFinding]:
    if subject.is_public and subject.serving.listen.tls is None:
        message = "prompts, answers and keys cross the network unencrypted"
        hint = "set endpoints.tls, or bind to loopback behind a proxy that ends TLS"
        yield AuditFinding("audit/plain-text", Gravity.MEDIUM, "endpoints.tls", message, hint)


def any_host(subject: AuditSubject) -> Iterator[AuditFinding]:
    if not subject.serving.http.allowed_hosts:
        message = "any Host header is taken, so a web page can point its own name here"
        hint = "list the names that clients use"
        yield AuditFinding("audit/any-host", Gravity.LOW, "endpoints.http.allowed_hosts", message, hint)


def any_origin(subject: AuditSubject) -> Iterator[AuditFinding]:
    if "*" in subject.serving.http.cors.origins:
        gravity = Gravity.MEDIUM if subject.serving.auth.has_keys else Gravity.HIGH
        message = "every web page may call from its visitors' browsers"
        yield AuditFinding("audit/any-origin", gravity, "endpoints.cors.allowed_origins", message, "list the origins")


def templates_of_requests(subject: AuditSubject) -> Iterator[AuditFinding]:
    if subject.serving.requests.trust_request_chat_template:
        message = "clients may send Jinja templates, which run in this process, if in a sandbox"
        hint = "set model.trust_request_chat_template: false"
        path = "model.trust_request_chat_template"
        yield AuditFinding("audit/request-template", Gravity.HIGH, path, message, hint)


def code_of_others(subject: AuditSubject) -> Iterator[AuditFinding]:
    spec = subject.prepared.loaded.spec
    if spec.model.trust_remote_code:
        code = subject.prepared.plan.model.modelling
        files = ", ".join(file.name for file in code.files) if code is not None and code.origin == "checkpoint" else ""
        message = f"Python code that comes with the checkpoint {f'is run: {files}' if files else 'may be run'}"
        yield AuditFinding(
            "audit/remote-code", Gravity.HIGH, "model.trust_remote_code", message, "pin model.code_revision"
        )
    for plugin in named_plugins(spec):
        message, hint = f"{plugin.name} is imported and run in the {plugin.runs_in}", "review it, and pin its package"
        yield AuditFinding("audit/plugin", Gravity.MEDIUM, plugin.path, message, hint)
    family = subject.prepared.plan.model.family
    if family is not None:
        package = f"{family.package} {family.version}"
        message = f"{family.family} of the package {package} builds the model in the planner and the engine"
        yield AuditFinding("audit/plugin", Gravity.MEDIUM, "model.source", message, "review it, and pin its package")


def unpinned_bytes(subject: AuditSubject) -> Iterator[AuditFinding]:
    model = subject.prepared.loaded.spec.model
    is_local = Path(model.source).expanduser().is_absolute() or model.source.startswith(".")
    if model.sha256 is None and model.revision is None and not is_local and "@" not in model.source:
        message = "the checkpoint may change between two starts"
        hint = "set model.revision to a commit, or model.sha256"
        yield AuditFinding("audit/unpinned-model", Gravity.MEDIUM, "model.source", message, hint)


def rules_of_keys(subject: AuditSubject) -> Iterator[AuditFinding]:
    for name in subject.serving.auth.key_hashes:
        rules = subject.serving.auth.key_rules.get(name)
        if rules is None or (rules.requests_per_minute, rules.tokens_per_minute, rules.max_concurrency) == (None,) * 3:
            message = f"the key {name} may use everything at any rate"
            hint = "give it requests_per_minute, tokens_per_minute or max_concurrency"
            yield AuditFinding("audit/key-unlimited", Gravity.LOW, "endpoints.auth.keys", message, hint)


def file_of_keys(subject: AuditSubject) -> Iterator[AuditFinding]:
    name = subject.serving.auth.keys_file
    if name is None:
        return
    try:
        mode = Path(name).stat().st_mode
    except OSError:
        return  # the planner and the server say so themselves
    if mode & stat.S_IWOTH or mode & stat.S_IWGRP:
        message = "others may write the file of keys, and so make keys"
        yield AuditFinding("audit/keys-writable", Gravity.HIGH, "endpoints.auth.keys_file", message, "chmod go-w")


def key_of_weights(subject: AuditSubject) -> Iterator[AuditFinding]:
    key = subject.plan.model.loader.key
    try:
        mode = 0 if key is None else Path(key.path).stat().st_mode
    except OSError:
        return  # the planner and the engine say so themselves
    if mode & stat.S_IROTH:
        message = "every user of this machine may read what opens the encrypted weights"
        yield AuditFinding("audit/weights-key-readable", Gravity.MEDIUM, FIELD, message, "chmod o-r")


def kept_kernels(subject: AuditSubject) -> Iterator[AuditFinding]:
    """Others that write into the folder of compiled kernels, or replace it, run code in the engine."""
    folder = planned_folder(subject.plan)
    if folder is not None and (_others_may_write(folder) or _others_may_write(folder.parent, may_be_sticky=True)):
        message = f"others may write compiled kernels into {folder.name}, which the engine loads and runs"
        hint = "chmod go-w on the folder and the one above, or name another one by APPLIANCE_CACHE"
        yield AuditFinding("audit/kernels-writable", Gravity.HIGH, "hardware.kernels", message, hint)


def _others_may_write(folder: Path, *, may_be_sticky: bool = False) -> bool:
    """Returns whether others may write into a folder; into one that is not there yet they may not. may_be_sticky: it
    does not count if they can replace only what is theirs."""
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        return False
    return bool(mode & (stat.S_IWOTH | stat.S_IWGRP)) and not (may_be_sticky and mode & stat.S_ISVTX)


def shared_cache(subject: AuditSubject) -> Iterator[AuditFinding]:
    auth = subject.serving.auth
    shares = subject.plan.cache.prefix_caching and not auth.isolate_caches
    if shares and (len(auth.key_hashes) > 1 or auth.keys_file is not None):
        tells = "its usage" if subject.serving.answers.prompt_tokens_details else "the time it takes"
        message = f"from an answer, by {tells}, one key can learn whether another asked the same"
        hint = "set endpoints.auth.isolate_caches: true"
        yield AuditFinding("audit/shared-cache", Gravity.LOW, "endpoints.auth.isolate_caches", message, hint)


def wide_limits(subject: AuditSubject) -> Iterator[AuditFinding]:
    limits = subject.serving.limits
    wide = {
        "endpoints.limits.max_body_bytes": limits.max_body_bytes > LARGE_BODY_BYTES,
        "endpoints.limits.max_n": limits.max_n > MANY_SEQUENCES,
        "endpoints.limits.header_timeout": limits.header_timeout_s > LONG_WAIT_S,
        "endpoints.limits.body_timeout": limits.body_timeout_s > LONG_WAIT_S,
        "endpoints.limits.write_timeout": limits.write_timeout_s > LONG_WAIT_S,
    }
    for path in (path for path, is_wide in wide.items() if is_wide):
        yield AuditFinding("audit/wide-limit", Gravity.LOW, path, "one client can hold much of the server", "lower it")


def text_in_logs(subject: AuditSubject) -> Iterator[AuditFinding]:
    logs = subject.serving.logs
    if logs.log_requests and logs.max_log_len is None:
        path = "observability.logs.enable_log_requests"
        yield AuditFinding("audit/logged-text", Gravity.MEDIUM, path, "whole prompts are logged", "set max_log_len")


def for_developers(subject: AuditSubject) -> Iterator[AuditFinding]:
    routes = subject.serving.routes
    switches = {
        "endpoints.apis": "debug" in routes.apis,
        "endpoints.http.enable_docs": routes.docs,
        "endpoints.http.enable_tokenizer_info_endpoint": routes.tokenizer_info,
    }
    for path in (path for path, is_on in switches.items() if is_on and subject.is_public):
        message = "a route for developers is open to the network"
        yield AuditFinding("audit/developer-route", Gravity.LOW, path, message, "switch it off where it is not needed")


RULES: Final[tuple[Rule, ...]] = (
    open_network,
    plain_text,
    any_host,
    any_origin,
    templates_of_requests,
    code_of_others,
    unpinned_bytes,
    rules_of_keys,
    file_of_keys,
    key_of_weights,
    kept_kernels,
    shared_cache,
    wide_limits,
    text_in_logs,
    for_developers,
)


def audit(prepared: Prepared) -> tuple[AuditFinding, ...]:
    """Gravest first."""
    found = [finding for rule in RULES for finding in rule(AuditSubject(prepared))]
    return tuple(sorted(found, key=lambda finding: -finding.gravity))
