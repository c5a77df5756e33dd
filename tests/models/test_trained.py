"""The echo model echoes, through our own decoder as through transformers."""

from pathlib import Path

import pytest
import transformers

from appliance.checkpoint.read import read_model_facts
from appliance.kernels.binding import load_kernel_set
from tests.models.trained import END, FIELD, echo_prompt, make_echo_model
from tests.parity.harness import Driver, bind, execution_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("echo")
    make_echo_model(folder)
    return folder


@pytest.mark.parametrize("message", ["hi", "Hello, world!", "aaaabbbb  \t 1234", "x" * FIELD])
def test_a_message_comes_back(folder: Path, message: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": message}], return_dict=False)
    assert prompt == tokenizer(echo_prompt(message))["input_ids"]
    bounds = execution_of()
    driver = Driver(bind(read_model_facts(folder), load_kernel_set("reference"), execution=bounds), bounds)
    tokens = driver.greedy(prompt, len(message) + 1)
    assert tokens[-1] == END
    assert tokenizer.decode(tokens[:-1]) == message
