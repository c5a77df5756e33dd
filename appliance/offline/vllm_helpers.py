"""What programs of vLLM import beside the classes of the Python API, and what those are to them."""

import argparse
import gc
import importlib
import logging
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from appliance.offline.llm import LLM
from appliance.offline.outputs import PoolingRequestOutput


class TorchLLM(LLM):
    """LLM for programs that do torch's arithmetic on what `encode` returns, as vLLM's tensors let them."""

    def encode(self, *prompts: Any, **options: Any) -> list[PoolingRequestOutput]:
        found, torch = super().encode(*prompts, **options), importlib.import_module("torch")
        for each in found:
            each.outputs.data = torch.tensor(each.outputs.data)
        return found


class FlexibleArgumentParser(argparse.ArgumentParser):
    """Takes flags with underscores as those with dashes."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args([_dashed(each) for each in given], namespace)


def get_tokenizer(name: str, tokenizer_mode: str = "auto", revision: str | None = None, **options: Any) -> Any:
    """Returns transformers' tokenizer, which this needs. tokenizer_mode: auto, hf or slow; another is a ValueError."""
    if tokenizer_mode not in ("auto", "hf", "slow"):
        raise ValueError(f"tokenizer_mode is {tokenizer_mode!r}; transformers has auto, hf and slow")
    loader = importlib.import_module("transformers").AutoTokenizer
    return loader.from_pretrained(name, revision=revision, use_fast=tokenizer_mode != "slow", **options)


def resolve_chat_template(
    tokenizer: Any, chat_template: str | None, tools: Sequence[Mapping[str, Any]] | None, **ignored: Any
) -> str | None:
    """Returns the template that transformers' tokenizer would take; None where it has none. Other arguments of vLLM's
    function say where a processor of images lies, which no model here has."""
    if chat_template is None and not tokenizer.chat_template:
        return None
    found: str = tokenizer.get_chat_template(chat_template, tools=tools)
    return found


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Collects garbage: an engine that nobody refers to ends with it, and its memory is free."""
    if shutdown_ray:
        raise ValueError("shutdown_ray: no engine of this process runs on Ray")
    gc.collect()


def init_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


def random_uuid() -> str:
    return uuid.uuid4().hex


def print_embeddings(embeds: Sequence[float], prefix: str = "Embeddings") -> None:
    """Prints the first numbers of a vector, and how many it has."""
    shown = ", ".join(map(str, embeds[:4])) + (", ..." if len(embeds) > 4 else "")
    sys.stdout.write(f"{prefix}: [{shown}] (size={len(embeds)})\n")


def _dashed(word: str) -> str:
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else word
