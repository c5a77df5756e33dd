"""A tiny model, trained in a few seconds, that repeats the message: for end-to-end tests without a network.

The chat template writes `<|user|>`, the last message padded to FIELD tokens with `<|pad|>`, and `<|assistant|>`. So the
token that an answer token repeats always lies FIELD + 1 before its successor; where padding begins, the answer ends.
Tokens are bytes. Messages are ASCII, of at most FIELD characters; what is beyond them is cut.
"""

from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

FIELD = 32
PAD, USER, ASSISTANT, END = 256, 257, 258, 259
SPECIAL_TOKENS = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{%- set text = messages[-1]['content'][:" + str(FIELD) + "] -%}"
    "<|user|>{{ text }}{{ '<|pad|>' * (" + str(FIELD) + " - text|length) }}<|assistant|>"
)
_MAX_STEPS, _SURE = 400, 3.0  # stop once every answer token leads by this much


def echo_prompt(text: str) -> str:
    """Returns the prompt that the chat template makes of a message."""
    return f"<|user|>{text[:FIELD]}{'<|pad|>' * (FIELD - len(text[:FIELD]))}<|assistant|>"


def make_echo_model(folder: Path) -> None:
    """Saves weights, config, tokenizer and chat template in `folder`. Raises RuntimeError when training fails."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _train().save_pretrained(folder)
    finally:
        torch.set_num_threads(threads)
    byte_tokenizer().save_pretrained(folder)


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token a byte, and the four special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _train() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=END + 1,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, betas=(0.9, 0.95))
    for step in range(_MAX_STEPS):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, (step + 1) / 20) * (0.3 if step > 100 else 1.0)
        logits, targets = _answers(model, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= 100 and step % 20 == 0 and _lead(*_answers(model, _MAX_STEPS + step)) > _SURE:
            return model
    raise RuntimeError("the echo model did not learn to repeat")


def _answers(model: torch.nn.Module, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [n, V] and right tokens [n] of the answers to 32 random messages."""
    generator = torch.Generator().manual_seed(seed)
    length = torch.randint(1, FIELD + 1, (32, 1), generator=generator)
    text = torch.randint(0, PAD, (32, FIELD), generator=generator)
    at = torch.arange(FIELD)
    message, answer = torch.where(at < length, text, PAD), torch.where(at < length, text, END)

    def column(token: int) -> torch.Tensor:
        return torch.full((32, 1), token)

    tokens = torch.cat([column(USER), message, column(ASSISTANT), answer, column(END)], dim=1)
    is_answer = torch.arange(FIELD + 1) <= length
    return model(tokens).logits[:, FIELD + 1 : -1][is_answer], tokens[:, FIELD + 2 :][is_answer]


@torch.no_grad()
def _lead(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Returns the least lead of the right token over the next best; negative if it does not lead."""
    right = logits.gather(1, targets[:, None])[:, 0]
    others = logits.scatter(1, targets[:, None], float("-inf")).max(dim=1).values
    return float((right - others).min())
