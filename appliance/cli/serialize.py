"""`appliance serialize`: writes the checkpoint of a spec as a file of tensorizer, plain or encrypted."""

import json
from pathlib import Path

from appliance.base.errors import ExitCode
from appliance.base.units import format_size
from appliance.checkpoint import resolve_source
from appliance.checkpoint.loader_choice import CheckpointKey
from appliance.checkpoint.serialize import NAME, Stored, serialize
from appliance.checkpoint.tensorizer import FORM
from appliance.cli.arguments.exchange import SerializeArguments
from appliance.cli.ending import ended_in_order
from appliance.cli.progress import ProgressBar
from appliance.cli.spec_target import spec_target
from appliance.cli.verb import UsageError
from appliance.plan.loader_options import checkpoint_key_of
from appliance.plan.prepare import fetch_options, form_of
from appliance.spec.loader import load_spec


def run(arguments: SerializeArguments) -> int:
    """Prints where the file is. Raises CheckpointError, SpecError, UsageError or MissingExtraError."""
    path, overrides = spec_target(arguments.spec, arguments.overrides)
    spec = load_spec(path, overrides).spec
    options = fetch_options(spec, Path(path).parent, spec.model.revision, spec.loading.offline)
    key = _key(arguments)
    with ended_in_order(), ProgressBar() as progress:
        found = resolve_source(spec.model.source, spec.model.mirrors, spec.model.sha256, options, progress)
        stored = Stored(found, form_of(spec) == FORM, checkpoint_key_of(spec, Path(path).resolve().parent))
        tensors = serialize(stored, arguments.folder, key, progress)
    made, size, is_encrypted = arguments.folder / NAME, sum(tensor.size_bytes for tensor in tensors), key is not None
    if arguments.as_json:
        figures = {"path": str(made), "encrypted": is_encrypted, "num_tensors": len(tensors), "size_bytes": size}
        print(json.dumps(figures, indent=2))
    else:
        print(f"{made}: {len(tensors)} tensors, {format_size(size)}, {'encrypted' if is_encrypted else 'plain'}")
        print("serve it with model.source: its folder, loading.load_format: tensorizer")
    return ExitCode.OK


def _key(arguments: SerializeArguments) -> CheckpointKey | None:
    """Raises UsageError for a file that is not there: its path is from where the command runs."""
    files = {"--encryption-keyfile": arguments.keyfile, "--encryption-password-file": arguments.password_file}
    for option, file in files.items():
        if file is not None and not file.exists():
            raise UsageError(f"{option}: there is no file {file}")
    if arguments.password_file is not None:
        return CheckpointKey(path=str(arguments.password_file), holds="password")
    return None if arguments.keyfile is None else CheckpointKey(path=str(arguments.keyfile), holds="key")
