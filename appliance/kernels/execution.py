"""The plan's decisions for running a program: the sizes of its steps, its arithmetic, its placement, its graphs."""

from dataclasses import dataclass

from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import RankView
from appliance.program.placement import IN_ORDER, ExpertPlacing
from appliance.program.stages import Stage


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """The sizes for which binding allocates; a step never exceeds them."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_sampled: int
    max_model_len: int
    block_size: int
    num_blocks: int
    num_states: int = 0  # slots, each with room for every state of the program
    max_loras: int = 0  # slots of adapters


@dataclass(frozen=True, slots=True)
class Numerics:
    """The number formats in which a program computes."""

    kv_dtype: str  # "f32", "bf16", "f16", "int8", "fp8_e4m3", "fp8_e5m2"
    # Inputs of ROUNDED_INPUT_LAYOUTS are int8 in groups of min(group_size, 256) columns; in a set on torch those of f8
    # with a scale a row are e4m3, a scale a token, and no others.
    quantize_activations: bool
    lora_dtype: str = "bf16"  # of the maps of adapters: "f32" or "bf16"
    activation_dtype: str = "f32"  # of slots whose type the program leaves open; the CPU sets have no other
    batch_invariant: bool = False  # of sets that have the choice: rows round alike in every batch


@dataclass(frozen=True, slots=True)
class Placement:
    """The device and threads that a program runs on, and extra data that it may keep there."""

    num_threads: int
    device: str = "cpu"
    share_prefixes: bool = True  # decodes read a prefix that they share once for all, where the set can (cascade)
    screen_logits: bool = False  # keep a copy of the head in fewer bits, for steps that need only the largest logits
    cpus: tuple[int, ...] = ()  # to which the threads are bound; none: they are not
    nodes: tuple[int, ...] = ()  # NUMA nodes of which memory is taken first; none: of that where a thread runs
    lock_memory: bool = False  # weights and caches are never paged out
    memory_bytes: int = 0  # of a GPU, which the plan takes beside the driver's context
    streamed_layers: tuple[int, ...] = ()  # whose matrices stay in host memory; only of sets on torch, without graphs


@dataclass(frozen=True, slots=True)
class Graphs:
    """The sizes of steps that are captured as graphs; without any, every step runs operator by operator.

    decode: numbers of sequences that each have one new token; the whole step is one graph. tokens: numbers of new
    tokens of other steps, of which what lies between attention operators is captured. Both are in rising order.
    max_seq_len: steps with a longer sequence run operator by operator all the same; None: there is no such length.
    """

    decode: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    max_seq_len: int | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """The arguments of binding a program, beside its weights. ranks: of a program that several ranks run together.
    stage: of its layers, those that these ranks run; None: all. experts: where ranks, or replicas, have those of
    mixtures. lockstep: the replicas that have experts among them; None: this one has all."""

    limits: ExecutionLimits
    numerics: Numerics
    placement: Placement
    graphs: Graphs = Graphs()
    ranks: RankView | None = None
    stage: Stage | None = None
    experts: ExpertPlacing = IN_ORDER
    lockstep: Lockstep | None = None
