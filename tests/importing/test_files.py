"""llama-swap configurations and Modelfiles."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.base.errors import SpecError
from appliance.checkpoint.sources.address import HubAddress, PathAddress, parse_address
from appliance.cli.app import main
from appliance.importing.draft import CannotImportError
from appliance.importing.llama_swap import import_models
from appliance.importing.modelfile import import_modelfile
from appliance.spec import load_spec
from appliance.spec.loader import load_text
from tests.importing.imports import errors_of, origins, told

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
    found = import_models(SWAP).specs
    first, second = found["qwen2.5"], found["smol"]
    for each in (first, second):
        load_text(json.dumps(each.document), environ={})
    assert first.document["model"] == {
        "source": "/models/qwen2.5-0.5b.gguf",
        "max_model_len": 8192,
        "served_names": ["qwen2.5", "gpt-4o-mini"],
    }
    assert first.document["scheduler"] == {"max_num_seqs": 4}
    assert {each.origin for each in first.unplaced} == {"--no-webui", "-ngl 99", "ttl: 60"}
    assert first.document["cache"] == {"dtype": "int8"}
    assert second.document["model"]["source"] == "hf://owner/smol-GGUF:Q4_K_M"
    assert second.document["endpoints"]["http"] == {"port": 9503, "host": "127.0.0.1"}


@pytest.mark.parametrize(
    "text", ["", "models: {}", "models: {a: {cmd: whisper-server x}}", "models: {a: {cmd: llama-server}}", ":"]
)
def test_what_is_no_llama_swap_file_is_refused(text: str) -> None:
    with pytest.raises(CannotImportError):
        import_models(text)


MIXED = """\
startPort: 10001
apiKeys: [sk-hunter2, "${env.KEY}"]
macros:
  latest: >
    /opt/llama/llama-server-ec9e
    --port ${PORT}
  ctx: 4096
  args: "--ctx-size ${ctx}"
groups: {big: {members: [docker]}}
models:
  plain:
    macros: {ctx: 16384, temp: 0.7}
    cmd: |
      # ${latest} is a macro
      ${latest}
      --model ${env.HOME}/models/a.gguf ${args}
      --temperature ${temp} --min-p 0.01
    env: [CUDA_VISIBLE_DEVICES=0]
    aliases: [{id: gpt-4o-mini, name: mini}]
  docker:
    cmd: |
      docker run --name ${MODEL_ID}
      --init --rm -p ${PORT}:8080 -v /mnt/models:/models
      ghcr.io/ggml-org/llama.cpp:server
      --model '/models/b.gguf'
    cmdStop: docker stop ${MODEL_ID}
  vllm: {cmd: "docker run -p ${PORT}:8000 vllm/vllm-openai:v0.10.0 --model Qwen/Qwen3-8B"}
  shell: {cmd: "bash -lc 'cd /srv; exec vllm serve org/model --port ${PORT}'"}
  whisper: {cmd: "whisper-server --port ${PORT} -m /models/whisper.bin"}
  recipe: {cmd: "bash -lc 'exec ./run-recipe.sh glm --tp 2'"}
  nothing: {ttl: 5}
"""


def test_models_that_cannot_be_imported_are_listed_and_the_others_are_there() -> None:
    found = import_models(MIXED)
    assert list(found.specs) == ["plain", "docker", "vllm", "shell"]
    assert [errors_of(each.document) for each in found.specs.values()] == [[]] * 4
    assert [each.origin for each in found.unplaced] == [
        *("startPort: 10001", "groups: big", "the model whisper", "the model recipe", "the model nothing")
    ]
    sources = [each.document["model"]["source"] for each in found.specs.values()]
    assert sources == ["${env:HOME}/models/a.gguf", "/mnt/models/b.gguf", "Qwen/Qwen3-8B", "org/model"]
    plain = found.specs["plain"]
    assert plain.document["model"]["max_model_len"] == 16384
    assert plain.document["model"]["served_names"] == ["plain", "gpt-4o-mini"]
    assert plain.document["decoding"]["override_generation_config"] == {"temperature": 0.7, "min_p": 0.01}
    assert "env: CUDA_VISIBLE_DEVICES=0" in origins(plain)
    assert all("sk-hunter2" not in told(each) for each in found.specs.values())


def test_the_verb_says_which_models_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(MIXED)
    assert main(["import", "llama-swap", str(config)]) == 0
    text = capsys.readouterr().out
    assert len(list(yaml.safe_load_all(text))) == 4
    assert "# no equivalent: the model whisper\n" in text
    assert main(["import", "llama-swap", str(config), "--strict", "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert (len(printed["specs"]), len(printed["unplaced"])) == (4, 5)


def test_a_modelfile_becomes_a_spec() -> None:
    found = import_modelfile(MODELFILE)
    load_text(json.dumps(found.document), environ={})
    assert found.document["model"] == {"source": "./model.gguf", "max_model_len": 4096}
    assert found.document["decoding"]["override_generation_config"] == {"temperature": 0.7, "top_k": 40}
    assert found.document["lora"]["adapters"] == [{"name": "adapter", "source": "./adapter"}]
    origins = [each.origin for each in found.unplaced]
    assert origins == ["PARAMETER mirostat 2", "SYSTEM You are", 'TEMPLATE "{{ .Prompt }}"']


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ("hf.co/owner/Model-GGUF:Q4_K_M", "hf://owner/Model-GGUF:Q4_K_M"),
        ("huggingface.co/owner/Model-GGUF:q8_0", "hf://owner/Model-GGUF:q8_0"),
        ("https://huggingface.co/owner/Model-GGUF", "hf://owner/Model-GGUF"),
        ("hf.co/owner/Model-GGUF:latest", "hf://owner/Model-GGUF"),
        ("hf.co/owner/Model-GGUF:Model-IQ3_M.gguf", "hf://owner/Model-GGUF/Model-IQ3_M.gguf"),
        ("./model", "./model"),
        ("~/models/a.gguf", "~/models/a.gguf"),
        ("/usr/share/ollama/.ollama/models/blobs/sha256-aa", "/usr/share/ollama/.ollama/models/blobs/sha256-aa"),
        ("model.gguf", "model.gguf"),
    ],
)
def test_where_a_modelfile_s_model_is(given: str, source: str, tmp_path: Path) -> None:
    found = import_modelfile(f"FROM {given}\n")
    assert (found.document["model"], found.unplaced) == ({"source": source}, ())
    address = parse_address(source, tmp_path)
    assert isinstance(address, HubAddress if source.startswith("hf://") else PathAddress)
    assert bool(found.notes) == (source == "hf://owner/Model-GGUF")


@pytest.mark.parametrize("name", ["llama3.2", "llama3.2:3b-instruct-q4_K_M", "someone/model:tag", "registry.x/a/b"])
def test_a_name_that_only_ollama_resolves_is_listed_with_what_to_do(name: str, tmp_path: Path) -> None:
    found = import_modelfile(f"FROM {name}\nPARAMETER temperature 0.5\n")
    ((origin, reason),) = [(each.origin, each.reason) for each in found.unplaced]
    assert (origin, f"`ollama show {name} --modelfile`" in reason) == (f"FROM {name}", True)
    assert found.document["decoding"] == {"override_generation_config": {"temperature": 0.5}}
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(found.document))
    with pytest.raises(SpecError, match=re.escape(name)):
        load_spec(spec)
    assert errors_of(found.document) == []  # where MODEL_SOURCE says it


@pytest.mark.parametrize(
    ("parameter", "kept"),
    [
        ("num_predict -1", {}),
        ("num_predict -2", {}),
        ("num_predict 256", {"max_new_tokens": 256}),
        ("top_p 7", {}),
        ("temperature warm", {}),
        ("stop [INST", {}),
        ('stop "{{"', {}),
        ("min_p 0.05", {"min_p": 0.05}),
    ],
)
def test_one_parameter_takes_no_other_with_it(parameter: str, kept: dict[str, Any]) -> None:
    lines = ["FROM ./m.gguf", "PARAMETER top_k 40", f"PARAMETER {parameter}", "PARAMETER repeat_penalty 1.1"]
    found = import_modelfile("\n".join(lines))
    defaults = found.document["decoding"]["override_generation_config"]
    assert defaults == {"top_k": 40, "repetition_penalty": 1.1, **kept}
    listed = [*origins(found), *(note.partition(":")[0] for note in found.notes)]
    assert listed == ([] if kept else [f"PARAMETER {parameter}"])


def test_a_second_from_is_listed() -> None:
    found = import_modelfile("FROM ./m.gguf\nFROM ./mmproj.gguf\n")
    assert found.document["model"] == {"source": "./m.gguf"}
    assert origins(found) == ["FROM ./mmproj.gguf"]


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
