"""What transformers answers on a real GGUF model: greedy tokens, and by how much each led the next best.

Slow (minutes a model on two cores), so the answers are kept as JSON in a folder and read from there the next time.
"""

import json
import os
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


def oracle_answers(model_file: Path, weights: str, cache: Path) -> list[Answer]:
    """weights: "f32" as dequantized, or "bf16": the same rounded to bf16. Both compute in f32."""
    kept = cache / f"{model_file.stem}-{weights}-{len(PROMPTS)}x{NUM_TOKENS}.json"
    if not kept.exists():
        answers = _ask(model_file, weights)
        cache.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([asdict(answer) for answer in answers]))
    return [Answer(**answer) for answer in json.loads(kept.read_text())]


@torch.inference_mode()
def _ask(model_file: Path, weights: str) -> list[Answer]:
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
    return [_greedy(model, tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]


def _greedy(model: torch.nn.Module, prompt: list[int]) -> Answer:
    answer = Answer(list(prompt), [], [])
    tokens, cache = torch.tensor([prompt]), None
    for _ in range(NUM_TOKENS):
        out = model(tokens, past_key_values=cache, use_cache=True)
        best = out.logits[0, -1].topk(2)
        answer.tokens.append(int(best.indices[0]))
        answer.leads.append(float(best.values[0] - best.values[1]))
        tokens, cache = best.indices[:1].reshape(1, 1), out.past_key_values
    return answer
