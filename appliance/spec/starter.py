"""The text that `init` writes."""

_TEXT = """\
# One deployment. Check it with `appliance validate {file}`, see what it becomes with `appliance plan {file}`,
# start it with `appliance apply {file}`. `appliance explain SECTION.FIELD` tells about any field.
# Fields that are not here have their defaults; `auto` is decided by the plan, which says why.
api_version: appliance/v1
kind: Deployment
name: {name}

model:
  # A hub repository, one file of it, a folder, or a .gguf file.
  source: {source}
  served_names: [{name}]
  # max_model_len: 32K          # prompt plus output; 32K is 32,768 and 32k is 32,000
  # sha256: ...                 # pins the bytes; needed with mirrors

hardware:
  memory:
    utilization: 0.9            # share of the free memory
    # kv_cache: 4GiB            # default: what is left after the weights

# scheduler:
#   max_num_seqs: 64            # sequences of a step
#   max_num_batched_tokens: 2K  # tokens of a step

endpoints:
  http:
    host: 127.0.0.1             # other addresses need keys
    port: 8000
  # auth:
  #   keys:                     # digest of a key: printf %s "$KEY" | sha256sum
  #     - {{name: team-a, hash: "sha256:..."}}

slo:
  ttft_p95: 2s
  itl_p95: 200ms
"""

SOURCE = "hf://Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


def starter_text(file: str, name: str, source: str) -> str:
    """Returns a valid spec with comments. `name` is the deployment's name."""
    return _TEXT.format(file=file, name=name, source=source)
