"""Fetches from the Hugging Face hub through huggingface-hub, with its cache, its tokens and its resume.

The library retries an unreachable hub for half a minute. So one short request first finds out whether the hub answers;
if not, only the local cache is used.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Final

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from appliance.base.disk import is_of_disk, remedy
from appliance.base.hashing import sha256_json
from appliance.base.settings import read_settings
from appliance.checkpoint import tensorizer
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.mistral import PATTERN as MISTRAL
from appliance.checkpoint.sources.address import HubAddress
from appliance.checkpoint.sources.options import (
    COPY_HINT,
    OFFLINE_HINT,
    Fetch,
    FetchOptions,
    Progress,
    UnreachableError,
)

# The files of a model folder that are needed: weights, configs, tokenizers and templates. Pickles only where there are
# no other weights: what they name is never run.
_MODULE: Final = re.compile(r"\d+_\w+/[\w.-]+")  # a file of a module of sentence-transformers, such as 1_Pooling
FOLDER_FILES: Final = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.model.v*", "merges.txt", "vocab.txt")
TORCH_FILES: Final = ("pytorch_model*.bin", "medusa_lm_head.pt")
PARTS: Final = {"code": ("*.py", "config.json"), "config": ("config.json", "params.json")}
# Its telemetry sends requests to the hub, even offline, that no user wants.
constants.HF_HUB_DISABLE_TELEMETRY = True
# The errors of the HTTP client library that this huggingface-hub uses are the bases of the hub's own errors.
_NETWORK_ERRORS: Final[tuple[type[Exception], ...]] = (*HfHubHTTPError.__bases__, OSError)


def fetch(address: HubAddress, job: Fetch) -> Path:
    """Fetches the file, or the snapshot folder. Raises UnreachableError or CheckpointError."""
    revision = address.revision or job.options.revision
    if job.options.only == "code":  # of code it may be another one than the checkpoint's
        revision = job.options.revision or address.revision
    listing = None if job.options.offline else _listing(address, revision, job)
    if listing is None:
        return _from_cache(address, revision, job)
    files, commit = listing
    _remember(address.repo, revision, commit, job)
    wanted = _wanted(address, files, job.options)
    try:
        if isinstance(wanted, str):
            return _download(address.repo, wanted, commit, job)
        folder = [_download(address.repo, name, commit, job) for name in wanted]
    except _NETWORK_ERRORS as error:
        if isinstance(error, OSError) and is_of_disk(error):
            raise _not_kept(address, error) from error
        raise UnreachableError(
            f"hf://{address.repo}", f"the download broke off: {_words(error)}", "try again: it resumes"
        ) from error
    return _common_root(folder[0], wanted[0])


def _not_kept(address: HubAddress, error: OSError) -> UnreachableError:
    """The hub's files lie in a cache of its own library; a mirror's do not."""
    problem = f"the hub's cache {constants.HF_HUB_CACHE} cannot be used: {error.strerror}"
    return UnreachableError(f"hf://{address.repo}", problem, remedy(error, "HF_HOME"))


def _listing(address: HubAddress, revision: str | None, job: Fetch) -> tuple[list[str], str] | None:
    """Returns the file names and the commit; None if the hub cannot be reached."""
    where = f"hf://{address.repo}"
    endpoint, token = _access(job)
    try:
        info = HfApi(endpoint, token=token).model_info(address.repo, revision=revision, timeout=job.options.timeout_s)
    except GatedRepoError as error:
        raise UnreachableError(where, "is gated", "accept its terms on the hub and set loading.hf_token") from error
    except RevisionNotFoundError as error:
        raise UnreachableError(where, f"has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        hint = "check the name; a private repository needs loading.hf_token"
        raise UnreachableError(where, "is not on the hub, or not for this token", hint) from error
    except HFValidationError as error:
        raise CheckpointError(where, "is not a name that the hub allows") from error
    except HfHubHTTPError as error:
        raise UnreachableError(where, f"the hub refused: {_words(error)}") from error
    except _NETWORK_ERRORS as error:
        job.progress.note(f"{where}: the hub cannot be reached ({_words(error)}); looking in the local cache")
        return None
    return [sibling.rfilename for sibling in info.siblings or []], info.sha or revision or "main"


def _wanted(address: HubAddress, files: Sequence[str], options: FetchOptions) -> str | list[str]:
    """Returns the one file, or the files of the folder. Raises CheckpointError if several files would fit."""
    where = f"hf://{address.repo}"
    if options.only != "all":
        return _part(where, files, options.only)
    if address.file is not None:
        if address.file not in files:
            near = [name for name in files if name.endswith(PurePosixPath(address.file).suffix)]
            raise UnreachableError(
                where, f"has no file {address.file!r}", f"it has: {', '.join(near[:8])}" if near else None
            )
        return _with_shards(address.file, files)
    if address.quant is not None:
        return _quantized(where, address.quant, files)
    kept = [name for name in files if not any(fnmatch(name, pattern) for pattern in options.ignore_patterns)]
    if options.form == "custom":
        return kept
    if options.form == tensorizer.FORM:
        return [name for name in _like(kept, (*FOLDER_FILES, tensorizer.PATTERN)) if not name.endswith(".safetensors")]
    if options.form == "dummy":
        if "config.json" not in kept:
            raise CheckpointError(where, "has no config.json, which alone tells what random weights a model needs")
        return [name for name in _like(kept, FOLDER_FILES) if not name.endswith(".safetensors")]
    if not any(name.endswith(".safetensors") for name in kept):
        if "config.json" in kept and _like(kept, TORCH_FILES):
            return _like(kept, (*FOLDER_FILES, *TORCH_FILES))
        return _only_gguf(where, kept)
    return _like(_of_one_form(kept, options.form), FOLDER_FILES)


def _part(where: str, files: Sequence[str], part: str) -> list[str]:
    """Returns the files of a part of a repository. Raises CheckpointError if it has no such part."""
    found = _like(files, PARTS[part])
    if not found:
        raise CheckpointError(where, f"has no {part}: {', '.join(PARTS[part])}")
    return found


def _of_one_form(files: Sequence[str], form: str) -> list[str]:
    """Returns the files without the weights that are there a second time, by Mistral's names or by transformers'."""
    own = {name for name in files if fnmatch(name, MISTRAL)}
    others = {name for name in files if name.endswith(".safetensors") and "/" not in name} - own
    doubled = others if form == "mistral" and own else own if others else set()
    return [name for name in files if name not in doubled]


def _like(files: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Returns the files that fit a pattern, of the top folder and of the folders of modules."""
    known = [name for name in files if any(fnmatch(name, pattern) for pattern in patterns)]
    return [name for name in known if "/" not in name or _MODULE.fullmatch(name)]


def _with_shards(name: str, files: Sequence[str]) -> str | list[str]:
    """Returns the file, or all files of a split GGUF, the first one first."""
    stem, separator, count = name.removesuffix(".gguf").rpartition("-00001-of-")
    if not separator:
        return name
    return [shard for shard in sorted(files) if shard.startswith(f"{stem}-") and shard.endswith(f"-of-{count}.gguf")]


def _quantized(where: str, quant: str, files: Sequence[str]) -> str | list[str]:
    """Returns the one GGUF model whose name contains `quant` as a whole word, in upper or lower case."""
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?![A-Za-z0-9_])", re.IGNORECASE)
    models = _gguf_models(files)
    found = [name for name in models if word.search(name)]
    if len(found) == 1:
        return _with_shards(found[0], files)
    if found:
        raise CheckpointError(where, f"holds {len(found)} GGUF models of {quant}", f"name one: {_listed(where, found)}")
    hint = f"it has: {', '.join(models[:8])}" if models else None
    raise UnreachableError(where, f"has no GGUF model of {quant}", hint)


def _gguf_models(files: Sequence[str]) -> list[str]:
    """Returns the GGUF files that hold a model; a split one is listed by its first file."""
    models = [name for name in files if name.endswith(".gguf") and "mmproj" not in name]
    return [name for name in models if "-of-" not in name or "-00001-of-" in name]


def _listed(where: str, names: Sequence[str]) -> str:
    return f"{where}/{names[0]}; also {', '.join(names[1:6])}"


def _only_gguf(where: str, files: Sequence[str]) -> str | list[str]:
    firsts = _gguf_models(files)
    if len(firsts) == 1:
        return _with_shards(firsts[0], files)
    if firsts:
        raise CheckpointError(where, f"holds {len(firsts)} GGUF models", f"name one: {_listed(where, firsts)}")
    raise CheckpointError(where, "holds neither safetensors nor GGUF files")


def _download(repo: str, name: str, commit: str, job: Fetch) -> Path:
    bar = _bar_class(job.progress, name)
    endpoint, token = _access(job)
    path = hf_hub_download(
        repo,
        name,
        revision=commit,
        endpoint=endpoint,
        token=token,
        etag_timeout=job.options.timeout_s,
        tqdm_class=bar,
    )
    return Path(str(path))


def _access(job: Fetch) -> tuple[str | None, str | None]:
    """Returns the hub's address and a token: the spec's, else the environment's; for None the library decides.

    Raises SettingsError.
    """
    settings = read_settings()
    own = settings.hub_token.get_secret_value() if settings.hub_token is not None else None
    endpoint = str(settings.hub_endpoint).rstrip("/") if settings.hub_endpoint is not None else None
    return endpoint, job.options.token or own


def _remember(repo: str, revision: str | None, commit: str, job: Fetch) -> None:
    """Stores the commit of a branch or tag for offline use, because files are cached by commit."""
    path = _reference(repo, revision, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(commit)


def _reference(repo: str, revision: str | None, job: Fetch) -> Path:
    return job.options.cache_dir / "refs" / sha256_json([repo, revision])


def _from_cache(address: HubAddress, revision: str | None, job: Fetch) -> Path:
    reference = _reference(address.repo, revision, job)
    revision = reference.read_text() if reference.is_file() else revision
    try:
        if address.file is not None:
            return Path(str(hf_hub_download(address.repo, address.file, revision=revision, local_files_only=True)))
        folder = Path(str(snapshot_download(address.repo, revision=revision, local_files_only=True)))
    except LocalEntryNotFoundError as error:
        state = "offline" if job.options.offline else "the hub cannot be reached"
        problem = f"{state}, and the local cache does not hold it"
        hint = OFFLINE_HINT if job.options.offline else COPY_HINT
        raise UnreachableError(f"hf://{address.repo}", problem, hint) from error
    if job.options.only != "all":
        return folder
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    wanted = _wanted(address, files, job.options)
    return folder / (wanted if isinstance(wanted, str) else wanted[0]) if _is_gguf(wanted) else folder


def _is_gguf(wanted: str | list[str]) -> bool:
    return (wanted if isinstance(wanted, str) else wanted[0]).endswith(".gguf")


def _common_root(first: Path, name: str) -> Path:
    """Returns the snapshot folder; for a split GGUF its first file."""
    return first if name.endswith(".gguf") else first.parent


def _words(error: BaseException) -> str:
    """Returns the first line of an error, without addresses."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.split(" for url")[0].split(": http")[0][:200]


def _bar_class(progress: Progress, name: str) -> Any:
    """Returns a class with tqdm's interface that reports our progress. huggingface-hub makes one object per file."""

    class Bar:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.total, self.n = kwargs.get("total"), 0
            self.format_dict: dict[str, Any] = {}
            progress.start(f"fetching {name}", self.total, "bytes")
            self.update(kwargs.get("initial", 0))

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            progress.advance(int(n or 0))

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *error: object) -> None:
            self.close()

        def close(self) -> None:
            pass

        refresh = set_description = set_description_str = set_postfix_str = lambda self, *args, **kwargs: None

    return Bar
