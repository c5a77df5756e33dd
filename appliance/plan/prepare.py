"""From a spec file to a plan: finds the machine, the profile and the checkpoint, then compiles. The I/O of planning."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from appliance.base.environ import cache_dir
from appliance.base.errors import ApplianceError, ExitCode, SpecError
from appliance.base.texts import utf8_text, without_mark
from appliance.catalog.templates import QWEN3_RERANKER, SHIPPED, shipped_template
from appliance.checkpoint import mistral
from appliance.checkpoint.adapter import AdapterFacts, read_adapter
from appliance.checkpoint.config_choice import ConfigChoice
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.label_tokens import ORIGINAL_QWEN3
from appliance.checkpoint.modelling import Modelling, find_modelling, own_class
from appliance.checkpoint.other_config import with_config
from appliance.checkpoint.sources.address import HubAddress, parse_address
from appliance.checkpoint.sources.options import OFFLINE_HINT, FetchOptions, Progress
from appliance.checkpoint.sources.resolve import resolve_source
from appliance.checkpoint.tensorizer_key import check_key
from appliance.checkpoint.vocabulary import Likeness, compare, read_vocabulary
from appliance.hardware import HardwareFacts, Profile, find_profile, load_facts, load_profiles, probe_machine
from appliance.hardware.errors import HardwareError
from appliance.hardware.select import select_profile
from appliance.models.facts import FindFamily, read_facts
from appliance.models.outside import find_family
from appliance.plan.accelerators import can_run, no_device
from appliance.plan.compile import compile_plan
from appliance.plan.inputs import DraftModelFiles, PlanInputs, ResolvedFiles
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.loader_options import checkpoint_key_of, loader_of
from appliance.plan.types import EnginePlan
from appliance.spec import DeploymentSpec, LoadedSpec, load_spec, load_text
from appliance.spec.sections.lora import AdapterSection

MAX_TEMPLATE_BYTES = 1 << 20


class CannotRunError(ApplianceError):
    """The plan is whole, and this version has not all that it needs."""

    exit_code = ExitCode.INVALID


class Prepared(NamedTuple):
    loaded: LoadedSpec
    model: ModelFacts
    plan: EnginePlan
    inputs: PlanInputs


@dataclass(frozen=True, slots=True)
class Machine:
    facts: HardwareFacts
    profile: Profile


def prepare(
    spec_path: str | Path,
    overrides: Sequence[str] = (),
    hardware: str | HardwareFacts | None = None,
    *,
    model_facts: Path | None = None,
    allow_fetch: bool = True,
    to_run: bool = True,
    progress: Progress | None = None,
    spec_text: str | None = None,
    has_key: bool = True,
) -> Prepared:
    """The spec, the checkpoint's facts and the plan.

    hardware: a known machine's name or a facts file; this machine when None, or the facts of a part of it.
    model_facts: a ModelFacts JSON in place of the checkpoint. allow_fetch False: only what is on this machine. to_run:
    refuse a plan that this version cannot run. spec_text: what the file said, in place of what it says. has_key: this
    machine has the key of an encrypted checkpoint, if it is to run. Raises ApplianceError: SpecError, FitError,
    CannotRunError, CheckpointError, HardwareError.
    """
    base = Path(spec_path).resolve().parent
    if spec_text is None:
        loaded = load_spec(spec_path, overrides)
    else:
        loaded = load_text(spec_text, str(spec_path), overrides, folder=base)
    machine = find_machine(loaded.spec, hardware)
    files = resolve_files(loaded, base, allow_fetch, progress)
    if model_facts is None:
        model = find_model(loaded, base, allow_fetch, progress, files.config_path)
    else:
        model = _blamed(loaded, lambda choice: with_config(load_model_facts(model_facts), choice), files.config_path)
    draft_model = find_draft_model(loaded, base, model, files.tokenizer_path, allow_fetch, progress)
    files = replace(files, draft_model=draft_model)
    may_score = loaded.spec.model.chat_template is None and loaded.spec.model.task in (AUTO, "score")
    if may_score and model.config.get(ORIGINAL_QWEN3) is True:
        files = replace(files, chat_template=shipped_template(QWEN3_RERANKER))
    files = replace(files, modelling=find_code(loaded, base, model, allow_fetch, progress))
    plan = compile_plan(loaded, machine.facts, machine.profile, model, files)
    if to_run and plan.cannot_run:
        raise CannotRunError("; ".join(plan.cannot_run), hint="`appliance plan` shows what it would be")
    if to_run and has_key and files.checkpoint_key is not None:
        check_key(files.checkpoint_key)
    inputs = PlanInputs(loaded=loaded, facts=machine.facts, profile=machine.profile, model=model, files=files)
    return Prepared(loaded, model, plan, inputs)


def find_machine(spec: DeploymentSpec, hardware: str | HardwareFacts | None) -> Machine:
    """The facts and the profile. On this machine, `auto` passes over devices that this version cannot run."""
    is_here = not isinstance(hardware, str)
    facts = load_facts(hardware) if isinstance(hardware, str) else hardware or probe_machine()
    profiles = load_profiles()
    if spec.hardware.profile != AUTO:
        return Machine(facts, find_profile(spec.hardware.profile, profiles))
    wanted = spec.hardware.device
    if wanted not in (AUTO, "cpu") and not facts.accelerators:
        message, hint = no_device(wanted)
        raise HardwareError(message, hint=hint)
    if wanted != AUTO:
        profiles = tuple(profile for profile in profiles if profile.device == wanted)
    elif is_here:
        profiles = tuple(profile for profile in profiles if can_run(profile, facts))
    return Machine(facts, select_profile(facts, profiles).profile)


def load_model_facts(path: Path) -> ModelFacts:
    """A ModelFacts JSON. Raises CheckpointError."""
    try:
        return msgspec.json.decode(without_mark(path.read_bytes(), path.name), type=ModelFacts)
    except OSError as error:
        raise CheckpointError(path.name, f"cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise CheckpointError(path.name, f"is no ModelFacts JSON: {error}") from error


def find_model(
    loaded: LoadedSpec,
    base: Path,
    allow_fetch: bool = True,
    progress: Progress | None = None,
    config_path: str | None = None,
) -> ModelFacts:
    """The facts of the checkpoint, first from what is here, then fetched. config_path: of another config than its own.

    Raises CheckpointError, and SpecError where `model.hf_overrides` makes a config that cannot be read.
    """
    spec = loaded.spec.model

    def obtain(offline: bool) -> Path:
        options = fetch_options(loaded.spec, base, spec.revision, offline)
        return resolve_source(spec.source, spec.mirrors, spec.sha256, options, progress)

    path = _offline_first(obtain, allow_fetch and not is_offline(loaded.spec))
    form, find = form_of(loaded.spec), _trusted_families(loaded.spec)
    loader = loader_of(loaded.spec)
    return _blamed(loaded, lambda choice: read_facts(path, cache_dir(), form, choice, find, loader), config_path)


def _blamed(loaded: LoadedSpec, read: Callable[[ConfigChoice], ModelFacts], config_path: str | None) -> ModelFacts:
    """Reads facts with the config that the spec states. What cannot be read for its overrides is refused there."""
    overrides = loaded.spec.model.hf_overrides
    try:
        return read(ConfigChoice(path=config_path, overrides=overrides))
    except CheckpointError as error:
        if not overrides:
            raise
        read(ConfigChoice(path=config_path))  # raises where the overrides are not to blame
        ledger, hint = Ledger(loaded), error.hint or "remove model.hf_overrides, or write what the model has"
        ledger.refuse("model.hf_overrides", "plan/config", error.problem, hint=hint)
        raise SpecError(ledger.refusals) from error


def _trusted_families(spec: DeploymentSpec) -> FindFamily | None:
    return find_family if spec.decoding.trust_plugins else None


def find_draft_model(
    loaded: LoadedSpec,
    base: Path,
    model: ModelFacts,
    tokenizer_path: str | None,
    allow_fetch: bool = True,
    progress: Progress | None = None,
) -> DraftModelFiles | None:
    """The draft model that the spec names, and how its vocabulary relates to the model's. Raises CheckpointError."""
    spec = loaded.spec.speculative
    if spec is None or spec.model is None:
        return None
    source, revision = spec.model, spec.revision

    def obtain(offline: bool) -> Path:
        return resolve_source(source, (), None, fetch_options(loaded.spec, base, revision, offline), progress)

    try:
        path = _offline_first(obtain, allow_fetch and not is_offline(loaded.spec))
        facts = read_facts(path, cache_dir(), AUTO, find_family=_trusted_families(loaded.spec))
        if "draft_model" not in spec.methods:  # a head, which has the model's tokens
            return DraftModelFiles(facts=facts, likeness=Likeness("same", 0, 0), tokenizer_path=model.root)
        ours, theirs = (read_vocabulary(Path(each)) for each in (tokenizer_path or model.root, facts.root))
    except CheckpointError as error:
        raise CheckpointError("the draft model", str(error), error.hint) from error
    if ours is None or theirs is None:  # nothing but the number of tokens can be compared
        sizes = model.geometry.vocab_size, facts.geometry.vocab_size
        likeness = Likeness("same" if sizes[0] == sizes[1] else "none", 0, sizes[1])
    else:
        likeness = compare(ours, theirs)
    return DraftModelFiles(facts=facts, likeness=likeness, tokenizer_path=facts.root)


def find_code(
    loaded: LoadedSpec, base: Path, model: ModelFacts, allow_fetch: bool = True, progress: Progress | None = None
) -> Modelling | None:
    """The modelling code that could run the checkpoint; None where our own decoder does. The checkpoint's own code is
    fetched only if the spec trusts it. Raises CheckpointError."""
    spec, known = loaded.spec.model, model.known
    is_ours = spec.model_impl == "appliance" or (spec.model_impl == AUTO and known is not None and known.family)
    if is_ours:
        return None
    folder = Path(model.root)
    if spec.trust_remote_code and own_class(model.config) is not None:
        folder = _code_folder(loaded, base, folder, allow_fetch and not is_offline(loaded.spec), progress)
    return find_modelling(model.architecture, model.config, folder)


def _code_folder(loaded: LoadedSpec, base: Path, folder: Path, may_fetch: bool, progress: Progress | None) -> Path:
    """The checkpoint's folder, or that of its code at `code_revision`."""
    spec = loaded.spec.model
    if not isinstance(parse_address(spec.source, base, has_resolver=spec.resolver is not None), HubAddress):
        return folder

    def obtain(offline: bool) -> Path:
        options = fetch_options(loaded.spec, base, spec.code_revision or spec.revision, offline)
        path = resolve_source(spec.source, (), None, replace(options, only="code"), progress)
        if offline and not any(path.glob("*.py")):
            raise CheckpointError(spec.source, "its Python code is not on this machine", OFFLINE_HINT)
        return path

    return _offline_first(obtain, may_fetch)


def form_of(spec: DeploymentSpec) -> str:
    """Returns the form in which the spec asks for the checkpoint: a value of `loading.load_format`."""
    wanted = spec.loading.load_format
    return mistral.FORM if wanted == AUTO and spec.model.config_format == mistral.FORM else wanted


def is_offline(spec: DeploymentSpec) -> bool:
    """Returns True if the spec forbids the network."""
    return spec.loading.offline


def _offline_first(obtain: Any, may_fetch: bool) -> Path:
    try:
        path: Path = obtain(True)
    except CheckpointError:
        if not may_fetch:
            raise
        path = obtain(False)
    return path


def fetch_options(spec: DeploymentSpec, base: Path, revision: str | None, offline: bool) -> FetchOptions:
    """Returns how files are fetched. `base`: the folder that relative paths start from."""
    loading = spec.loading
    values: dict[str, Any] = {
        "base_dir": base,
        "revision": revision,
        "token": loading.hf_token.get_secret_value() if loading.hf_token else None,
        "ignore_patterns": tuple(loading.ignore_patterns),
        "offline": offline,
        "form": form_of(spec),
        "timeout_s": loading.timeout,
        "resolver": spec.model.resolver,
    }
    if loading.download_dir is not None:
        values["cache_setting"] = "loading.download_dir"
        values["cache_dir"] = base / Path(loading.download_dir).expanduser()
    return FetchOptions(**values)


def resolve_files(
    loaded: LoadedSpec, base: Path, allow_fetch: bool = True, progress: Progress | None = None
) -> ResolvedFiles:
    """Reads what the spec names by path: the tokenizer's place, the chat template, the generation config."""
    spec = loaded.spec
    generation, packed, lora = spec.decoding.generation_config, spec.loading.packed_dir, spec.lora
    return ResolvedFiles(
        tokenizer_path=_tokenizer_path(loaded, base, allow_fetch, progress),
        config_path=_config_path(loaded, base, allow_fetch, progress),
        checkpoint_key=checkpoint_key_of(spec, base),
        chat_template=_chat_template(spec.model.chat_template, base),
        packed_dir=None if packed is None else _below(base, packed),
        kernels_dir=None if (kernels := spec.compilation.cache_dir) is None else _below(base, kernels),
        profiler_dir=None if (profiles := spec.observability.profiler_dir) is None else _below(base, profiles),
        generation_config=None if generation in (AUTO, "none") else _generation_config(base / generation),
        adapters=_adapters(loaded, base, allow_fetch, progress),
        adapter_paths=tuple(_below(base, each) for each in lora.runtime_paths) if lora is not None else (),
        weight_update_paths=tuple(_below(base, each) for each in spec.model.weight_update_paths),
        adapter_resolver_dir=_below(base, lora.resolver_dir) if lora is not None and lora.resolver_dir else None,
    )


def _below(base: Path, written: str) -> str:
    """Returns a path of the spec, which starts from the spec's folder."""
    return str(base / Path(written).expanduser())


def _adapters(loaded: LoadedSpec, base: Path, allow_fetch: bool, progress: Progress | None) -> tuple[AdapterFacts, ...]:
    """The facts of the adapters that the spec lists, in its order. Raises CheckpointError."""
    listed = () if loaded.spec.lora is None else loaded.spec.lora.adapters
    return tuple(_adapter(each, loaded, base, allow_fetch, progress) for each in listed)


def _adapter(
    wanted: AdapterSection, loaded: LoadedSpec, base: Path, allow_fetch: bool, progress: Progress | None
) -> AdapterFacts:
    def obtain(offline: bool) -> Path:
        options = fetch_options(loaded.spec, base, wanted.revision, offline)
        return resolve_source(wanted.source, (), None, replace(options, form=AUTO), progress)

    try:
        facts = read_adapter(_offline_first(obtain, allow_fetch and not is_offline(loaded.spec)))
    except CheckpointError as error:
        raise CheckpointError(f"adapter {wanted.name}", str(error), error.hint) from error
    if wanted.sha256 not in (None, facts.sha256):
        raise CheckpointError(f"adapter {wanted.name}", f"its sha256 is {facts.sha256}, not {wanted.sha256}")
    return facts


def _tokenizer_path(loaded: LoadedSpec, base: Path, allow_fetch: bool, progress: Progress | None) -> str | None:
    spec = loaded.spec
    tokenizer = spec.model.tokenizer
    if tokenizer is None:
        return None
    if (base / tokenizer).exists():
        return str(base / tokenizer)

    def obtain(offline: bool) -> Path:
        options = fetch_options(spec, base, spec.model.tokenizer_revision, offline)
        return resolve_source(tokenizer, (), None, options, progress)

    return str(_offline_first(obtain, allow_fetch and not is_offline(spec)))


def _config_path(loaded: LoadedSpec, base: Path, allow_fetch: bool, progress: Progress | None) -> str | None:
    """The folder of the config that the spec names, or its file. Only the config of a repository is fetched."""
    wanted = loaded.spec.model.hf_config_path
    if wanted is None or (base / wanted).exists():
        return None if wanted is None else str(base / wanted)

    def obtain(offline: bool) -> Path:
        options = replace(fetch_options(loaded.spec, base, None, offline), only="config")
        return resolve_source(wanted, (), None, options, progress)

    return str(_offline_first(obtain, allow_fetch and not is_offline(loaded.spec)))


def _chat_template(wanted: str | None, base: Path) -> str | None:
    """The text of a template: of a file where one has this name, of one that we ship, else as it stands."""
    if wanted is None or "{" in wanted or "\n" in wanted:
        return wanted
    path = base / wanted
    if not path.is_file():
        return shipped_template(wanted) if wanted in SHIPPED else wanted
    data = path.read_bytes()
    if len(data) > MAX_TEMPLATE_BYTES:
        raise CheckpointError(path.name, f"a chat template has at most {MAX_TEMPLATE_BYTES} bytes")
    return utf8_text(data, path.name)


def _generation_config(path: Path) -> dict[str, Any]:
    file = path / "generation_config.json" if path.is_dir() else path
    try:
        return msgspec.json.decode(without_mark(file.read_bytes(), file.name), type=dict[str, Any])
    except OSError as error:
        raise CheckpointError(file.name, f"cannot be read: {error.strerror}", "decoding.generation_config") from error
    except msgspec.DecodeError as error:
        raise CheckpointError(file.name, f"is no JSON object: {error}") from error
