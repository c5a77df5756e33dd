"""Command lines as people have them: in containers, after wrappers, with variables; and compose files."""

from typing import Any

import pytest

from appliance.cli.app import main
from appliance.importing.command import import_command
from appliance.importing.compose import import_services
from appliance.importing.docker import read_port
from appliance.importing.draft import CannotImportError
from appliance.importing.words import split_commands
from tests.importing.imports import at, errors_of, origins, told

GUIDE = r"""docker run --runtime nvidia --gpus all \
    -v ~/.cache/huggingface:/root/.cache/huggingface \
    --env "HF_TOKEN=$HF_TOKEN" \
    -p 8000:8000 \
    --ipc=host \
    vllm/vllm-openai:latest \
    --model Qwen/Qwen3-0.6B
"""  # of vLLM's guide to Docker
IMAGE = "vllm/vllm-openai:latest"


def test_the_docker_line_of_vllm_s_guide() -> None:
    found = import_command(GUIDE)
    assert errors_of(found.document) == []
    assert found.document["model"] == {"source": "Qwen/Qwen3-0.6B"}
    assert found.document["endpoints"] == {"http": {"port": 8000}}
    assert found.document["loading"] == {"hf_token": "${env:HF_TOKEN}"}
    assert found.unplaced == ()
    for word in ("--runtime nvidia", "--gpus all", "-v ~/.cache/huggingface:", "--ipc=host", IMAGE):
        assert word in told(found), word


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve org/model", {}),
        ("$ vllm serve org/model", {}),
        ("/opt/venv/bin/vllm serve org/model --port 9000", {"port": 9000}),
        ("CUDA_VISIBLE_DEVICES=0 VLLM_LOGGING_LEVEL=DEBUG vllm serve org/model", {}),
        ("env A=1 nohup vllm serve org/model > log 2>&1 &", {}),
        ("export A=1\nvllm serve org/model\ncurl localhost:8000", {}),
        ("cd /srv && uv run vllm serve org/model --port 9000", {"port": 9000}),
        ("vllm serve org/model `\n  --port 9000", {"port": 9000}),
        ("vllm serve org/model\n  --port 9000", {"port": 9000}),
        ("vllm serve org/model --port ${PORT:-9000}", {"port": 9000}),
        ("python3.12 -m vllm.entrypoints.openai.api_server --model org/model --port=9000", {"port": 9000}),
        ("bash -c 'vllm serve org/model --port 9000'", {"port": 9000}),
        (f"docker run {IMAGE} --model org/model", {}),
        (f"nvidia-docker run {IMAGE} --model org/model", {}),
        (f"sudo podman run -itd --rm --name x docker.io/{IMAGE} org/model", {}),
        (f"docker container run --init=true {IMAGE}@sha256:aa --model org/model", {}),
        (f"docker run -dp 9000:8000 {IMAGE} --model org/model", {"port": 9000}),
        (f"docker run -p9000:7000 {IMAGE} --model org/model --port 7000", {"port": 9000}),
        (f"docker run -p 127.0.0.1:9000:8000/tcp {IMAGE} --model org/model", {"port": 9000, "host": "127.0.0.1"}),
        ("docker run --entrypoint vllm some/image serve org/model", {}),
        ("docker run --entrypoint bash some/image -c 'vllm serve org/model'", {}),
        ("docker run nvcr.io/nvidia/vllm:25.08-py3 vllm serve org/model", {}),
        (f"docker run -v /data:/models:ro {IMAGE} --model /models/m", {"source": "/data/m"}),
        (f"docker run --mount type=bind,src=./d,target=/models {IMAGE} --model /models/m", {"source": "./d/m"}),
        ("llama-server -hf owner/model:Q4_K_M", {"source": "hf://owner/model:Q4_K_M"}),
        ("llama-server -hf owner/model", {"source": "hf://owner/model"}),
        ("llama-server -hf owner/model -hff a/m-Q8_0.gguf", {"source": "hf://owner/model/a/m-Q8_0.gguf"}),
        ("./build/bin/llama-server -m m.gguf --jinja --port 9000", {"source": "m.gguf", "port": 9000}),
        ("docker run -v /d:/models ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/m.gguf", {"source": "/d/m.gguf"}),
        ("vllm serve owner/model-GGUF:Q4_K_M", {"source": "hf://owner/model-GGUF:Q4_K_M"}),
    ],
)
def test_a_command_line_becomes_a_spec(command: str, expected: dict[str, Any]) -> None:
    found = import_command(command)
    assert errors_of(found.document) == []
    assert at(found.document, "model.source") == expected.get("source", "org/model")
    http = found.document.get("endpoints", {}).get("http", {})
    assert http == {name: expected[name] for name in ("host", "port") if name in expected}


@pytest.mark.parametrize("flag", ["-md", "--model-draft", "--spec-draft-model"])
def test_a_draft_model_of_llama_server_is_one_here(flag: str) -> None:
    found = import_command(f"llama-server -m m.gguf {flag} small.gguf --draft-max 8")
    assert errors_of(found.document) == []
    assert at(found.document, "speculative") == {"model": "small.gguf", "num_tokens": 8}


@pytest.mark.parametrize(
    ("command", "listed"),
    [
        ("sudo numactl -N 0 vllm serve org/model", ["sudo numactl -N 0"]),
        ("cd /srv; A=1 vllm serve org/model | tee log", ["A=1", "cd ...", "tee ..."]),
        ("export A=1\nvllm serve org/model", ["A=1"]),
        (f"docker run -e A=1 --env-file x -p 1:2 --cap-add S {IMAGE} --model org/model",
         ["-e A=1", "-p 1:2", "--env-file x", "--cap-add S"]),
        (f"docker run -p 8000-8010:8000-8010 -v /x:/y {IMAGE} --model org/model",
         ["-v /x:/y", "-p 8000-8010:8000-8010"]),
        ("llama-server -m a.gguf stray --chat-template chatml -ngl 99", ["stray", "--chat-template chatml", "-ngl 99"]),
    ],
)  # fmt: skip
def test_what_has_no_place_is_listed(command: str, listed: list[str]) -> None:
    assert origins(import_command(command)) == listed


@pytest.mark.parametrize(
    "command",
    [
        "HF_TOKEN=hf_secret vllm serve org/model",
        "export HF_TOKEN=hf_secret; vllm serve org/model",
        "vllm serve org/model --hf-token hf_secret",
        "vllm serve org/model --api-key hf_secret",
        "VLLM_API_KEY=hf_secret vllm serve org/model",
        "SOME_PASSWORD=hf_secret vllm serve org/model",
        f"docker run -e HF_TOKEN=hf_secret {IMAGE} --model org/model",
        f'docker run --env "HUGGING_FACE_HUB_TOKEN=hf_secret" {IMAGE} --model org/model',
        "llama-server -m m.gguf --api-key hf_secret",
        "vllm serve org/model; curl -H 'Authorization: Bearer hf_secret' localhost",
    ],
)
def test_no_secret_is_written_into_a_spec(command: str) -> None:
    assert "hf_secret" not in told(import_command(command))


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
@pytest.mark.parametrize(("value", "variable"), [("", None), ("=$MINE", "MINE"), ("=${MINE}", "MINE"), ("=x", None)])
def test_a_token_is_named_by_its_variable(name: str, value: str, variable: str | None) -> None:
    found = import_command(f"docker run -e {name}{value} {IMAGE} --model org/model")
    assert at(found.document, "loading.hf_token") == f"${{env:{variable or name}}}"


@pytest.mark.parametrize("number", [-1, -2])
def test_a_bound_that_bounds_nothing_takes_no_default_with_it(number: int) -> None:
    found = import_command(f"llama-server -m m.gguf --temp 0.6 -n {number} --top-k 40")
    assert at(found.document, "decoding.override_generation_config") == {"temperature": 0.6, "top_k": 40}
    assert f"-n {number}: bounds nothing, as no bound does here" in found.notes


@pytest.mark.parametrize(
    "command",
    ["docker ps", "docker run other/image --model x", "docker run vllm/vllm-openai /bin/bash", "docker run",
     "bash -c ls", "docker run ghcr.io/ggml-org/llama.cpp:full --convert x", "python -m http.server", "vllm serve 'x"],
)  # fmt: skip
def test_other_commands_are_refused(command: str) -> None:
    with pytest.raises(CannotImportError):
        import_command(command)


def test_words_are_the_shell_s() -> None:
    assert split_commands("a > log 2>&1 b >>x c < y d") == [["a", "b", "c", "d"]]
    assert split_commands("a 'b; c' -- d; e && f | g &") == [["a", "b; c", "--", "d"], ["e"], ["f"], ["g"]]
    assert split_commands("a '{\n  \"b\": 1}'\n--c # d\ne") == [["a", '{\n  "b": 1}', "--c"], ["e"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8000", (8000, None, "")),
        ("80:8000", (8000, 80, "")),
        ("$PORT:8000", (8000, None, "")),
        ("${PORT}:8000/tcp", (8000, None, "")),
        ("0.0.0.0:80:8000", (8000, 80, "0.0.0.0")),
        ("127.0.0.1::8000", (8000, None, "127.0.0.1")),
        ("[::1]:80:8000", (8000, 80, "::1")),
        ("8000-8010:8000-8010", None),
        ("53:53/udp", None),
    ],
)
def test_published_ports(text: str, expected: tuple[int, int | None, str] | None) -> None:
    found = read_port(text, "-p")
    assert (None if found is None else (found.port, found.host_port, found.host_ip)) == expected


COMPOSE = """\
services:
  vllm:
    image: vllm/vllm-openai:latest
    ports: ["8001:8000"]
    volumes:
      - ~/.cache/huggingface:/root/.cache/huggingface
      - {type: bind, source: ./templates, target: /t}
      - data:/somewhere
    environment: ["HUGGING_FACE_HUB_TOKEN=${HF_TOKEN:-}", "PLAIN=1"]
    ipc: host
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}
    command: >
      --model ${MODEL:-Qwen/Qwen3-8B} --max-model-len 8192
      --chat-template /t/a.jinja
  llama:
    image: ghcr.io/ggml-org/llama.cpp:server
    ports: [{target: 8080, published: 9000, host_ip: 127.0.0.1}]
    environment: {HF_HUB_OFFLINE: 1}
    command: ["-hf", "owner/model:Q8_0"]
  own: {image: python, entrypoint: vllm, command: [serve, org/model]}
  webui: {image: open-webui, ports: ["3000:8080"]}
networks: {inside: {}}
"""


def test_services_of_a_compose_file() -> None:
    found = import_services(COMPOSE)
    assert list(found.specs) == ["vllm", "llama", "own"]
    assert [each.origin for each in found.unplaced] == ["networks:", "the service webui"]
    assert all(errors_of(each.document) == [] for each in found.specs.values())
    first, second, third = found.specs.values()
    assert first.document["model"] == {
        "source": "Qwen/Qwen3-8B",
        "max_model_len": 8192,
        "chat_template": "./templates/a.jinja",
    }
    assert first.document["endpoints"] == {"http": {"port": 8001}}
    assert first.document["loading"] == {"hf_token": "${env:HF_TOKEN}"}
    assert origins(first) == ["environment: PLAIN=1", "volumes: data:/somewhere", "deploy:"]
    assert "${MODEL:-Qwen/Qwen3-8B}: its default is in this spec" in first.notes
    assert second.document["endpoints"] == {"http": {"port": 9000, "host": "127.0.0.1"}}
    assert second.document["loading"] == {"offline": True}
    assert at(second.document, "model.source") == "hf://owner/model:Q8_0"
    assert at(third.document, "model.source") == "org/model"


@pytest.mark.parametrize("text", ["", "services: {}", "services: {a: {image: redis}}", ":"])
def test_what_is_no_compose_file_of_a_server_is_refused(text: str) -> None:
    with pytest.raises(CannotImportError):
        import_services(text)


@pytest.mark.parametrize("kind", ["vllm", "llama-server"])
def test_the_verb_takes_a_line_as_one_word_or_as_many(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"vllm": ["vllm", "serve", "--port", "8000", "org/model"], "llama-server": ["llama-server", "-m", "m.gguf"]}
    assert main(["import", kind, " ".join(words[kind])]) == 0
    text = capsys.readouterr().out
    assert main(["import", kind, "--", *words[kind]]) == 0
    assert capsys.readouterr().out == text


def test_adapters_of_llama_server_have_names_and_scales() -> None:
    command = "llama-server -m m.gguf --lora /a/First_One.gguf --lora-scaled /a/two.gguf:0.5,/a/three.gguf:2"
    found = import_command(command)
    assert errors_of(found.document) == []
    assert at(found.document, "lora.adapters") == [
        {"name": "first-one", "source": "/a/First_One.gguf"},
        {"name": "two", "source": "/a/two.gguf", "scale": 0.5},
        {"name": "three", "source": "/a/three.gguf", "scale": 2},
    ]
    assert "requests name the adapter 'two'" in told(found)
    older = import_command("llama-server -m m.gguf --lora-scaled /a/two.gguf 0.5 --port 9000")
    assert at(older.document, "lora.adapters") == [{"name": "two", "source": "/a/two.gguf", "scale": 0.5}]
