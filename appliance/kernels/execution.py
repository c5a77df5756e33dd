"""How a program is to run, as the plan decided it: the sizes of its steps, its arithmetic, and what it runs on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """Sizes that binding allocates for; a step never exceeds them."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_sampled: int
    max_model_len: int
    block_size: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Numerics:
    """In which numbers a program computes."""

    kv_dtype: str  # "f32", "bf16", "f16"
    quantize_activations: bool  # for integer weights, int8 in groups of min(group_size, 256) columns; else f32


@dataclass(frozen=True, slots=True)
class Placement:
    """What a program runs on, and what it may keep there beside its weights."""

    num_threads: int
    device: str = "cpu"
    screen_logits: bool = False  # a copy of the head in fewer bits, for steps that ask for the largest logits


@dataclass(frozen=True, slots=True)
class Execution:
    """What a kernel set is told when it binds a program."""

    limits: ExecutionLimits
    numerics: Numerics
    placement: Placement
