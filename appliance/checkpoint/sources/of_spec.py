"""How a spec wants its checkpoint fetched."""

from pathlib import Path

from appliance.checkpoint.sources.options import FetchOptions, Progress
from appliance.checkpoint.sources.resolve import resolve_source
from appliance.spec.deployment import DeploymentSpec


def fetch_options(
    spec: DeploymentSpec, base: Path, *, offline: bool = False, revision: str | None = None
) -> FetchOptions:
    """How the spec wants its files fetched. base: the folder that relative paths start from."""
    loading = spec.loading
    defaults = FetchOptions()
    return FetchOptions(
        cache_dir=base / Path(loading.download_dir).expanduser() if loading.download_dir else defaults.cache_dir,
        base_dir=base,
        revision=revision or spec.model.revision,
        token=loading.hf_token.get_secret_value() if loading.hf_token else None,
        ignore_patterns=tuple(loading.ignore_patterns),
        offline=offline or loading.offline,
        timeout_s=loading.timeout,
    )


def fetch_model(spec: DeploymentSpec, base: Path, progress: Progress | None = None) -> Path:
    """The local path of a spec's checkpoint, fetched when it is not here. Raises CheckpointError."""
    model = spec.model
    return resolve_source(model.source, model.mirrors, model.sha256, fetch_options(spec, base), progress)
