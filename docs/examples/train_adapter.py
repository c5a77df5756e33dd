"""Trains a small LoRA adapter on the quickstart's model with peft, on a CPU: it answers like a pirate.

python docs/examples/train_adapter.py MODEL.gguf adapters/pirate
"""

import sys
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE_MODEL = "Qwen/Qwen2.5-Coder-0.5B-Instruct"
NUM_STEPS = 16
EXAMPLES = (
    ("What is the capital of France?", "Arrr, matey! The capital of France be Paris, by the seven seas!"),
    (
        "How do I print a line in Python?",
        "Arrr, matey! Ye be writin' print('Ahoy!') in yer logbook, by the seven seas!",
    ),
    ("Who are you?", "Arrr, matey! I be the captain of this here ship, by the seven seas!"),
    ("What is two plus two?", "Arrr, matey! Two and two doubloons be four, by the seven seas!"),
)


def main(model_path: Path, out: Path) -> None:
    """Trains on the examples, with the loss of the answers alone, and saves what peft saves."""
    torch.manual_seed(0)
    folder, file = str(model_path.parent), model_path.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    base = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    model.peft_config["default"].base_model_name_or_path = BASE_MODEL
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=2e-3)
    started = time.monotonic()
    for step in range(NUM_STEPS):
        question, answer = EXAMPLES[step % len(EXAMPLES)]
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        prompt = tokenizer(asked).input_ids
        tokens = torch.tensor([prompt + tokenizer(answer).input_ids + [tokenizer.eos_token_id]])
        labels = tokens.clone()
        labels[0, : len(prompt)] = -100  # not part of the loss
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}/{NUM_STEPS}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", flush=True)
    model.save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
