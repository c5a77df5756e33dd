"""A program that imports vllm runs here as it is."""

import subprocess
import sys
from pathlib import Path

from appliance.offline import as_vllm

PROGRAM = """\
import importlib.metadata
import importlib.util
import sys

import vllm
from vllm import LLM, EngineArgs, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

assert importlib.util.find_spec("vllm") is not None
assert importlib.util.find_spec("vllm.model_executor") is None
assert importlib.metadata.version("vllm") == vllm.__version__
try:
    from vllm import ModelRegistry
except ImportError as error:
    print(error)
parser = FlexibleArgumentParser()
EngineArgs.add_cli_args(parser)
parser.add_argument("--max-tokens", type=int)
parser.set_defaults(enforce_eager=True)
args = vars(parser.parse_args())
max_tokens = args.pop("max_tokens")
llm = LLM(**args)
choice = SamplingParams(max_tokens=max_tokens, structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
[output] = llm.generate("Well?", choice)
assert isinstance(output, RequestOutput)
print(llm.llm_engine.model_config.max_model_len, output.outputs[0].text in ("yes", "no"), sys.argv[0])
"""


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "appliance.offline.as_vllm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_program_of_vllm_runs_as_it_is(model: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = run(str(program), "--model", str(model), "--max_model_len", "512", "--max-tokens", "8")
    assert ran.returncode == 0, ran.stderr
    refused, said = ran.stdout.splitlines()
    assert "cannot import name 'ModelRegistry' from 'vllm'" in refused
    assert said == f"512 True {program}"


def test_a_module_runs_as_well() -> None:
    ran = run("-m", "json.tool", "--help")
    assert ran.returncode == 0
    assert "usage" in ran.stdout
    assert "as_vllm -m module" in run().stderr


def test_every_name_is_there() -> None:
    places = [(module, name) for module, names in as_vllm._NAMES.items() for name in names]
    assert len(places) > 60
    code = "from appliance.offline import as_vllm\nas_vllm.install()\nas_vllm.install()\n"
    code += "".join(f"from {module} import {name}\n" for module, name in places)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
