"""llama-swap configurations and Modelfiles."""

import json
from pathlib import Path

import pytest

from appliance.cli.app import main
from appliance.deploy.importing.draft import CannotImportError
from appliance.deploy.importing.llama_swap import import_models
from appliance.deploy.importing.modelfile import import_modelfile
from appliance.spec.loader import load_text

SWAP = """\
healthCheckTimeout: 60
macros:
  server: "/app/llama-server --port ${PORT} --no-webui"
models:
  "qwen2.5":
    cmd: |
      ${server} -m /models/qwen2.5-0.5b.gguf
      -c 8192 -ngl 99 -np 4 -ctk q8_0 -t 6
    aliases: [gpt-4o-mini]
    ttl: 60
  smol:
    cmd: llama-server --port 9503 -hf owner/smol-GGUF:Q4_K_M --host 127.0.0.1
"""

MODELFILE = '''\
# a comment
FROM ./model.gguf
PARAMETER temperature 0.7
PARAMETER top_k 40
PARAMETER num_ctx 4096
PARAMETER mirostat 2
ADAPTER ./adapter
SYSTEM """You are
helpful."""
TEMPLATE "{{ .Prompt }}"
'''


def test_each_model_of_llama_swap_becomes_a_spec() -> None:
    found = import_models(SWAP)
    first, second = found["qwen2.5"], found["smol"]
    for each in (first, second):
        load_text(json.dumps(each.document), environ={})
    assert first.document["model"] == {
        "source": "/models/qwen2.5-0.5b.gguf",
        "max_model_len": 8192,
        "served_names": ["qwen2.5", "gpt-4o-mini"],
    }
    assert first.document["scheduler"] == {"max_num_seqs": 4}
    assert {each.origin for each in first.unplaced} == {"--no-webui", "-ngl 99", "-ctk q8_0", "ttl: 60"}
    assert second.document["model"]["source"] == "hf://owner/smol-GGUF"
    assert second.document["endpoints"]["http"] == {"port": 9503, "host": "127.0.0.1"}


@pytest.mark.parametrize(
    "text", ["", "models: {}", "models: {a: {cmd: vllm serve x}}", "models: {a: {cmd: llama-server}}", ":"]
)
def test_what_is_no_llama_swap_file_is_refused(text: str) -> None:
    with pytest.raises(CannotImportError):
        import_models(text)


def test_a_modelfile_becomes_a_spec() -> None:
    found = import_modelfile(MODELFILE)
    load_text(json.dumps(found.document), environ={})
    assert found.document["model"] == {"source": "./model.gguf", "max_model_len": 4096}
    assert found.document["decoding"]["override_generation_config"] == {"temperature": 0.7, "top_k": 40}
    assert found.document["lora"]["adapters"] == [{"name": "adapter", "source": "./adapter"}]
    origins = [each.origin for each in found.unplaced]
    assert origins == ["PARAMETER mirostat 2", "SYSTEM You are", 'TEMPLATE "{{ .Prompt }}"']


def test_a_modelfile_without_a_model_is_refused() -> None:
    with pytest.raises(CannotImportError, match="no FROM"):
        import_modelfile("PARAMETER temperature 1\n")


def test_the_verb_writes_one_file_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(SWAP)
    assert main(["import", "llama-swap", str(config), "-o", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["qwen2-5.yaml", "smol.yaml"]
    assert main(["import", "llama-swap", str(config), "-o", str(tmp_path / "out")]) == 1
    assert "is there already" in capsys.readouterr().err
