"""The reference page of the model architectures that this version runs."""

from collections import defaultdict

from appliance.catalog.architectures import ARCHITECTURES
from appliance.checkpoint.gguf_architectures import ARCHITECTURES as GGUF
from appliance.checkpoint.gguf_architectures import OTHERWISE

_HEAD = """\
# Models

Generated from the catalogue of architectures: `appliance schema --write`. Do not edit.

A checkpoint runs if its `architectures[0]` in config.json, or the `general.architecture` of a GGUF file, is below. What
its config asks for and this version lacks is refused by name; `appliance plan` says so before a weight is read. How to
add one: [add a model](../extending/add-a-model.md). Other causal language models run on
[transformers' modelling code](../guides/other-models.md), where that takes its attention from outside.

Decoders are also read under the names of their layers alone (`Qwen3Model`) and with a classifier
(`Qwen3ForSequenceClassification`, `Qwen3ForTokenClassification`); encoders under those and as masked language models
(`BertForMaskedLM`). What such a model is for: [embeddings](../guides/embeddings.md).

| architecture | GGUF architecture | built by |
|---|---|---|
"""
_KNOWN = """
These are known and have no decoder of ours in this version: {names}.
"""


def models_text() -> str:
    """Returns the text of docs/reference/models.md, as committed."""
    files = defaultdict(list)
    for name, (architecture, _) in (*GGUF.items(), *OTHERWISE):
        files[architecture].append(name)
    own = (entry for entry in ARCHITECTURES.values() if entry.family and entry.base in (None, entry.name))
    built = sorted(own, key=lambda entry: entry.name.lower())
    rows = "".join(
        f"| `{entry.name}` | {_code(files[entry.name])} | `models/{_module(entry.family)}.py` |\n" for entry in built
    )
    later = _code([entry.name for entry in ARCHITECTURES.values() if not entry.family])
    return _HEAD + rows + _KNOWN.format(names=later)


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _module(family: str | None) -> str:
    return (family or "").rpartition(".")[2]
