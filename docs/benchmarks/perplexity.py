"""Perplexity of a deployment's model, beside transformers and llama.cpp on the same tokens or file.

    python docs/benchmarks/perplexity.py SPEC [--set PATH=VALUE ...] [--tokens 20480] [--window 512]
        [--transformers FOLDER [--dtype float32]] [--llama-perplexity BINARY --gguf MODEL.gguf]

The text is the reference manual that ships inside Python (pydoc_data.topics), so every machine has it. The method is
llama.cpp's: windows that do not overlap, each begun by the token that begins every text, if the model has one; the mean
negative log-likelihood of the second half of each, which has at least half a window of context.
"""

import argparse
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics

from appliance.base.environ import cache_dir
from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams, TokenLogprobs
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from appliance.service.text_side import load_text_side
from appliance.text.tokenizer import Tokenizer

MIN_FREE = 1  # a request generates one token, which needs a place in the context


def manual() -> str:
    return "\n\n".join(topics[name] for name in sorted(topics))


def windows(tokenizer: Tokenizer, text: str, size: int, total: int) -> list[list[int]]:
    """As many whole windows as `total` tokens make. Raises SystemExit when the text is shorter."""
    token_ids = tokenizer.encode(text, add_special_tokens=True)
    if len(token_ids) < total:
        raise SystemExit(f"the text has {len(token_ids)} tokens, fewer than {total}")
    begin = token_ids[:1] if token_ids[0] in tokenizer.special_ids else []
    starts = range(0, total - size + 1, size)
    return [begin + token_ids[start + len(begin) : start + size] for start in starts]


def ours(plan: EnginePlan, chunks: Sequence[list[int]]) -> float:
    """Perplexity by the engine's prompt_logprobs."""
    losses: list[float] = []
    with InprocEngine.from_plan(plan) as engine:
        for number, chunk in enumerate(chunks):
            sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
            engine.send(GenerateRequest(request_id=str(number), prompt_token_ids=chunk, sampling=sampling))
            positions = next(found for found in _prompt_logprobs(engine))
            losses += [-position.logprobs[0] for position in positions[len(chunk) // 2 + 1 :] if position is not None]
            progress("appliance", number, len(chunks), losses)
    return math.exp(sum(losses) / len(losses))


def _prompt_logprobs(engine: InprocEngine) -> Iterator[list[TokenLogprobs | None]]:
    """Runs the one open request to its end."""
    found: list[list[TokenLogprobs | None]] = []
    while engine.has_work:
        for event in engine.receive():
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                if output.error is not None:
                    raise SystemExit(output.error)
                if output.prompt_logprobs is not None:
                    found.append(output.prompt_logprobs)
    yield from found


def theirs(folder: str, dtype: str, chunks: Sequence[list[int]]) -> float:
    """Perplexity by transformers."""
    import torch  # noqa: PLC0415 - only where it is compared with
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - as above

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    losses: list[float] = []
    for number, chunk in enumerate(chunks):
        with torch.inference_mode():
            logits = model(torch.tensor([chunk])).logits[0].float().log_softmax(-1)
        scored = range(len(chunk) // 2 + 1, len(chunk))
        losses += [-logits[at - 1, chunk[at]].item() for at in scored]
        progress("transformers", number, len(chunks), losses)
    return math.exp(sum(losses) / len(losses))


def llama(binary: str, gguf: str, text: str, size: int, count: int) -> float:
    """Perplexity by llama.cpp's own program, which tokenizes the text itself."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        command = [binary, "-m", gguf, "-f", file.name, "-c", str(size), "-b", str(size), "--chunks", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)
    if found is None:
        raise SystemExit(f"{binary} printed no estimate")
    return float(found[1])


def progress(label: str, number: int, count: int, losses: Sequence[float]) -> None:
    value = math.exp(sum(losses) / len(losses))
    sys.stderr.write(f"\r{label}: window {number + 1}/{count}, perplexity {value:.4f}\x1b[K")
    if number + 1 == count:
        sys.stderr.write("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--tokens", type=int, default=20480)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--transformers", metavar="FOLDER")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--llama-perplexity", metavar="BINARY")
    parser.add_argument("--gguf", metavar="FILE")
    given = parser.parse_args()
    plan = prepare(given.spec, tuple(given.overrides)).plan
    if plan.model.max_model_len < given.window + MIN_FREE:
        raise SystemExit(
            f"the planned context of {plan.model.max_model_len} tokens has no room for --window {given.window}"
        )
    text = manual()
    chunks = windows(load_text_side(plan, cache_dir()).tokenizer, text, given.window, given.tokens)
    found = {"appliance": ours(plan, chunks)}
    if given.transformers:
        found[f"transformers {given.dtype}"] = theirs(given.transformers, given.dtype, chunks)
    if given.llama_perplexity:
        found["llama.cpp"] = llama(given.llama_perplexity, given.gguf, text, given.window, len(chunks))
    for label, value in found.items():
        sys.stdout.write(f"{label:<24}{value:>10.4f}{100 * (found['appliance'] / value - 1):>+9.3f} %\n")


if __name__ == "__main__":
    main()
