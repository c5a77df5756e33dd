"""`appliance pull`: fetch, check and cache the checkpoint of a spec, or of a source given by hand."""

import json
from collections.abc import Sequence
from pathlib import Path

from appliance.base.errors import ExitCode
from appliance.base.units import format_size
from appliance.checkpoint import FetchOptions, ModelFacts, read_model_facts, resolve_source
from appliance.checkpoint.sources.store import file_digest
from appliance.cli.progress import ProgressBar
from appliance.plan.prepare import fetch_options
from appliance.spec.loader import load_spec


def run(
    target: str,
    *,
    mirrors: Sequence[str] = (),
    sha256: str | None = None,
    revision: str | None = None,
    offline: bool = False,
    overrides: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """target: a spec's YAML file, or a source. Prints where the checkpoint is and its digest.

    Mirrors, digest and revision given here come before the spec's. Raises CheckpointError or SpecError.
    """
    options = FetchOptions(revision=revision, offline=offline)
    if target.endswith((".yaml", ".yml")):
        spec = load_spec(target, list(overrides)).spec
        options = fetch_options(
            spec, Path(target).parent, revision or spec.model.revision, offline or spec.loading.offline
        )
        target, mirrors, sha256 = spec.model.source, [*mirrors, *spec.model.mirrors], sha256 or spec.model.sha256
    with ProgressBar() as progress:
        path = resolve_source(target, mirrors, sha256, options, progress)
        digest = sha256 or (file_digest(path, progress) if path.is_file() else None)
    _report(path, digest, read_model_facts(path), as_json)
    return ExitCode.OK


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
