"""`appliance pull`: fetches, checks and caches the checkpoint of a spec, or of a given source."""

import json
from pathlib import Path

from appliance.base.environ import state_dir
from appliance.base.errors import ExitCode
from appliance.base.units import format_size
from appliance.checkpoint import FetchOptions, ModelFacts, read_model_facts, resolve_source
from appliance.checkpoint.loader_choice import NO_LOADER
from appliance.checkpoint.sources.store import file_digest
from appliance.cli.arguments.machine import PullArguments
from appliance.cli.progress import ProgressBar
from appliance.cli.spec_target import spec_target
from appliance.deploy.state import DeploymentState
from appliance.plan.loader_options import loader_of
from appliance.plan.prepare import fetch_options, form_of
from appliance.spec.files import SPEC_SUFFIXES
from appliance.spec.loader import load_spec


def run(arguments: PullArguments) -> int:
    """Prints the path of the checkpoint and its digest.

    Mirrors, digest and revision given here replace the spec's. Raises CheckpointError or SpecError.
    """
    target, mirrors, sha256 = arguments.target, arguments.mirrors, arguments.sha256
    options = FetchOptions(revision=arguments.revision, offline=arguments.offline)
    form, loader = None, NO_LOADER
    if _is_deployment(target):
        path, overrides = spec_target(target, arguments.overrides)
        spec = load_spec(path, overrides).spec
        revision, offline = arguments.revision or spec.model.revision, arguments.offline or spec.loading.offline
        options = fetch_options(spec, Path(path).parent, revision, offline)
        form, loader = form_of(spec), loader_of(spec)
        target, mirrors, sha256 = spec.model.source, (*mirrors, *spec.model.mirrors), sha256 or spec.model.sha256
    with ProgressBar() as progress:
        found = resolve_source(target, mirrors, sha256, options, progress)
        digest = sha256 or (file_digest(found, progress) if found.is_file() else None)
    _report(found, digest, read_model_facts(found, form=form, loader=loader), arguments.as_json)
    return ExitCode.OK


def _is_deployment(target: str) -> bool:
    """Returns whether the target is a spec, or the name of an applied deployment; anything else is a source."""
    if target.endswith(SPEC_SUFFIXES):
        return True
    is_name = "/" not in target and ":" not in target and not Path(target).exists()
    return is_name and bool(DeploymentState(state_dir(), target).generations())


def _report(path: Path, digest: str | None, facts: ModelFacts, as_json: bool) -> None:
    figures = {
        "path": str(path),
        "sha256": digest,
        "architecture": facts.architecture,
        "format": facts.format,
        "num_tensors": len(facts.tensors),
        "size_bytes": facts.size_bytes,
    }
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    print(f"path          {path}")
    print(f"sha256        {digest or 'a folder has none; pin model.revision'}")
    print(f"architecture  {facts.architecture} ({facts.format})")
    print(f"tensors       {len(facts.tensors)}, {format_size(facts.size_bytes)}")
