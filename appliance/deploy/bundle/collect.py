"""Gathers a bundle. A part that cannot be had is named with its reason: a bundle is made when things are broken."""

import importlib.metadata
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from appliance import __version__
from appliance.base import environ
from appliance.base.errors import ApplianceError, DiagnosedError
from appliance.deploy.bundle import contents
from appliance.deploy.bundle.contents import FilesRecord, Manifest
from appliance.deploy.bundle.masking import SECRET_NAME, Masker
from appliance.deploy.bundle.replay import compile_shared
from appliance.deploy.bundle.shareable import ShareableSpec, shareable_spec
from appliance.deploy.follow import log_tail
from appliance.deploy.kernels_record import kernels_record
from appliance.deploy.pins.lockfile import lock_path
from appliance.deploy.state import DeploymentState
from appliance.hardware import probe_machine
from appliance.plan.boot import read_boot_report
from appliance.plan.inputs import ResolvedFiles
from appliance.plan.prepare import find_code, find_draft_model, find_machine, find_model, resolve_files
from appliance.plan.render import render_json
from appliance.spec import LoadedSpec, load_text

LOG_LINES: Final = 400
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BundleSource:
    """The deployment that a bundle is about. `file`: what relative paths start at, and what the lock lies beside."""

    text: str
    file: str
    overrides: Sequence[str] = ()


@dataclass(slots=True)
class _Gathered:
    members: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)  # of the manifest
    missing: dict[str, str] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ApplianceError, OSError) as error:
            self.missing[name] = str(error)


def collect_bundle(wanted: BundleSource | None) -> dict[str, str]:
    """The members of the archive. `wanted` None: only the machine is known."""
    gathered = _Gathered()
    facts = probe_machine()
    gathered.members[contents.FACTS] = _json(facts)
    if wanted is None:
        gathered.missing[contents.SPEC] = "no deployment was named, and none runs"
    else:
        _about_the_spec(gathered, wanted)
    masker = Masker(gathered.secrets)
    manifest = Manifest(
        appliance=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages=_packages(),
        missing=gathered.missing,
        **gathered.values,
    )
    members = {contents.MANIFEST: _json(manifest), **gathered.members}
    return {name: _masked(masker, name, text) for name, text in members.items()}


def _masked(masker: Masker, name: str, text: str) -> str:
    if name == contents.LOG:
        return masker.log(text)
    if name in (
        contents.MODEL,
        contents.PLAN,
        contents.FACTS,
        contents.KERNELS,
    ):  # of masked inputs; their digests are compared
        return text
    return _json(masker.data(msgspec.json.decode(text))) if name.endswith(".json") else masker.plain(text)


def _about_the_spec(gathered: _Gathered, wanted: BundleSource) -> None:
    base = Path(wanted.file).resolve().parent
    try:
        loaded = load_text(wanted.text, wanted.file, wanted.overrides, folder=base)
    except DiagnosedError as error:
        gathered.missing[contents.SPEC] = "it is invalid: see diagnostics"
        gathered.values["diagnostics"] = [
            {"rule": each.rule, "path": each.path, "line": each.line, "column": each.column}
            for each in error.diagnostics
        ]
        return
    shared = shareable_spec(loaded)
    gathered.secrets |= shared.secrets | set(_secrets_of_the_environment())
    gathered.members[contents.SPEC] = shared.text
    gathered.values |= {"name": loaded.spec.name, "masked": shared.masked}
    with gathered.part(contents.PLAN):
        _plan(gathered, loaded, shared, base)
    with gathered.part(contents.LOCK):
        gathered.members[contents.LOCK] = lock_path(Path(wanted.file)).read_text(encoding="utf-8")
    _about_what_runs(gathered, DeploymentState(environ.state_dir(), loaded.spec.name))


def _plan(gathered: _Gathered, loaded: LoadedSpec, shared: ShareableSpec, base: Path) -> None:
    """The plan of the spec as it is shared, so that nothing secret is in it, and that others can make it again."""
    machine = find_machine(loaded.spec, None)
    gathered.values["profile"] = machine.profile.name
    masker = Masker(shared.secrets)
    resolved = resolve_files(loaded, base, allow_fetch=False)
    found = find_model(loaded, base, allow_fetch=False, config_path=resolved.config_path)
    model = _without_secrets(masker, found)
    gathered.members[contents.MODEL] = _json(model)
    draft_model = find_draft_model(loaded, base, found, resolved.tokenizer_path, allow_fetch=False)
    code = find_code(loaded, base, found, allow_fetch=False)
    resolved = replace(resolved, modelling=code, draft_model=draft_model)
    files = _without_secrets(masker, _record(resolved, loaded))
    gathered.values["files"] = files
    plan = compile_shared(shared.text, machine.facts, machine.profile.name, model, files)
    gathered.members[contents.PLAN] = render_json(plan)
    gathered.members[contents.KERNELS] = _json(kernels_record(plan, machine.facts))


def _without_secrets(masker: Masker, value: T) -> T:
    """The same type with its texts masked."""
    return msgspec.convert(masker.data(msgspec.to_builtins(value)), type=type(value))


def _record(files: ResolvedFiles, loaded: LoadedSpec) -> FilesRecord:
    """Without what was read from a place that is secret."""
    generation = files.generation_config
    return FilesRecord(
        tokenizer_path=None if "model.tokenizer" in loaded.secrets else files.tokenizer_path,
        config_path=None if "model.hf_config_path" in loaded.secrets else files.config_path,
        chat_template=None if "model.chat_template" in loaded.secrets else files.chat_template,
        generation_config=None if generation is None else dict(generation),
        packed_dir=None if "loading.packed_dir" in loaded.secrets else files.packed_dir,
        modelling=files.modelling,
        adapters=files.adapters,
        draft_model=files.draft_model,
    )


def _about_what_runs(gathered: _Gathered, state: DeploymentState) -> None:
    with gathered.part(contents.BOOT):
        gathered.members[contents.BOOT] = _json(read_boot_report(state.folder))
    current = state.current() if state.folder.is_dir() else None
    if current is not None:
        gathered.values["applied_engine_sha256"] = current.engine_sha256
    gathered.secrets |= {text.partition("=")[2] for each in state.generations() for text in each.overrides}
    rows = [_generation(each.number, each.result) for each in state.generations()]
    if rows:
        gathered.members[contents.HISTORY] = _json(rows)
    logs = [each.log_path for each in state.generations() if each.log_path.is_file()]
    if logs:
        gathered.members[contents.LOG] = log_tail(logs[-1], LOG_LINES)
    else:
        gathered.missing[contents.LOG] = "no server has written one"


def _generation(number: int, result: Callable[[], Any]) -> dict[str, Any]:
    """How it ended; the words of causes and reasons may hold values, and stay here."""
    found = result()
    return {
        "generation": number,
        "outcome": found.outcome if found else "unfinished",
        "how": found.how if found else "",
        "seconds": found.seconds if found else None,
    }


def _secrets_of_the_environment() -> Iterator[str]:
    """Values of variables that are called like secrets; those of fields among them."""
    for name, value in environ.snapshot().items():
        if SECRET_NAME.search(name):
            yield value


def _packages() -> dict[str, str]:
    """Returns the versions of this package's dependencies, as far as they are installed."""
    wanted = {re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in importlib.metadata.requires("appliance") or ()}
    return {name: version for name in sorted(wanted - {"appliance"}) if (version := _version(name))}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()
