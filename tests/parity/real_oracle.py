"""What transformers answers on a real GGUF model: greedy tokens, and by how much each led the next best.

Slow (a minute a model on two cores), so the answers are kept as JSON in a folder and read from there the next time.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

NUM_TOKENS = 64
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "import numpy as np\n\ndef softmax(x):",
    "The three laws of thermodynamics are",
    "SELECT name, COUNT(*) FROM orders",
    "Q: What is 17 times 23?\nA:",
    "class Stack:\n    def __init__(self):",
    "Water boils at",
    "To be, or not to be,",
    "for (int i = 0; i < n; i++) {",
    "The recipe needs two eggs, a cup of flour and",
    "In 1969, Neil Armstrong",
    "<html>\n<head>\n",
    "The opposite of hot is",
    "#include <stdio.h>\n\nint main(void) {",
    "Die Hauptstadt von Deutschland ist",
    "1, 1, 2, 3, 5, 8,",
    "A binary search tree is",
    "Dear Sir or Madam,",
)


@dataclass(frozen=True)
class Answer:
    prompt: list[int]
    tokens: list[int]
    leads: list[float]  # logit of each token less the next best


Guess = Callable[[list[int]], list[int]]  # a prompt to what may follow it


def oracle_answers(model_file: Path, weights: str, cache: Path, guess: Guess) -> list[Answer]:
    """weights: "f32" as dequantized, or "bf16": the same rounded to bf16. Both compute in f32.

    `guess` saves time and changes nothing: transformers runs over a prompt and its guess at once, keeps what it would
    have said itself, and goes on after the first token that it would not.
    """
    kept = cache / f"{model_file.stem}-{weights}-{len(PROMPTS)}x{NUM_TOKENS}.json"
    if not kept.exists():
        answers = _ask(model_file, weights, guess)
        cache.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([asdict(answer) for answer in answers]))
    return [Answer(**answer) for answer in json.loads(kept.read_text())]


@torch.inference_mode()
def _ask(model_file: Path, weights: str, guess: Guess) -> list[Answer]:
    where = {"pretrained_model_name_or_path": str(model_file.parent), "gguf_file": model_file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    dequantize = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=dequantize
    ).eval()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if weights == "bf16":
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(parameter.to(torch.bfloat16).float())
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    return [_greedy(model, prompt, guess(prompt)) for prompt in prompts]


def _greedy(model: torch.nn.Module, prompt: list[int], guessed: list[int]) -> Answer:
    answer = Answer(list(prompt), [], [])
    while len(answer.tokens) < NUM_TOKENS:
        ahead = guessed[len(answer.tokens) : NUM_TOKENS - 1]
        tokens = torch.tensor([prompt + answer.tokens + ahead])
        best = model(tokens, logits_to_keep=len(ahead) + 1).logits[0].topk(2)
        for index, (ids, values) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True)):
            answer.tokens.append(ids[0])
            answer.leads.append(values[0] - values[1])
            if ahead[index : index + 1] != ids[:1]:
                break
        if answer.tokens != guessed[: len(answer.tokens)]:
            guessed = []  # it went another way
    return answer
