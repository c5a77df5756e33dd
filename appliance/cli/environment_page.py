"""Generates the reference page of environment variables."""

from typing import Final

from appliance.base.settings import described

# Variables that are not settings but that we or a library read, and their meaning.
_OTHERS: Final = (
    ("`APPLIANCE__SECTION__FIELD`", "overrides a field of the spec, as `--set section.field=value` does"),
    ("any that a spec names", "`${env:NAME}` in a value of a spec"),
    ("`APPLIANCE_RANKS_TOKEN`", "the secret by which ranks of several machines know one another, the same on all"),
    (
        "`PYTHONPATH`",
        "where plug-ins are looked for; relative folders are those of the command, also in the server that it starts",
    ),
    ("`HOME`, `XDG_STATE_HOME`, `XDG_CACHE_HOME`", "where the two folders are by default"),
    (
        "`CUDA_VISIBLE_DEVICES`; `ROCR_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES`",
        "which accelerators this process may see",
    ),
    (
        "`CUDA_DEVICE_ORDER`",
        "how they are numbered; an engine sets `PCI_BUS_ID` where it is not set",
    ),
    (
        "`HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`",
        "huggingface-hub's own: where its downloads are, and whether it may ask",
    ),
    ("`_APPLIANCE_COMPLETE`", "by which the script of `appliance completion` asks"),
)


def environment_text() -> str:
    lines = [
        "# Variables of the environment",
        "",
        "Generated from `appliance/base/settings.py` by `appliance schema --write`. An empty variable is one that is"
        " not set; one with a value that it does not take is refused in one sentence by the command that reads it. What"
        " a deployment is belongs in its spec ([the spec](spec.md)).",
        "",
        "| variable | takes | where it is not set | meaning |",
        "|---|---|---|---|",
        *(f"| `{name}` | {takes} | {default} | {doc} |" for name, takes, default, doc in described()),
        "",
        "Beside these are read:",
        "",
        "| variable | what |",
        "|---|---|",
        *(f"| {name} | {what} |" for name, what in _OTHERS),
    ]
    return "\n".join(lines) + "\n"
