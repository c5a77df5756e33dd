"""`compilation`: graphs and compiled kernels of accelerators."""

from typing import ClassVar, Literal

from appliance.spec.fields import Section, field
from appliance.spec.scalars import Auto, Count, PositiveInt, Text

GraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]


class CompilationSection(Section):
    """Graph capture and compilation."""

    doc: ClassVar[str] = "Graph capture and compilation on accelerators. A CPU has neither."

    level: Literal[0, 1, 2, 3] = field(
        3,
        "0: steps run without graphs, unless cudagraph_mode says which. 1 to 3 are alike: kernels are compiled one by "
        "one and never traced.",
    )
    cudagraph_mode: Auto[GraphMode] = field(
        "auto",
        "Which steps run as graphs. FULL_DECODE_ONLY: steps in which every sequence has one new token, as one graph. "
        "PIECEWISE: every step, in graphs between attention. FULL_AND_PIECEWISE: both. FULL runs as "
        "FULL_AND_PIECEWISE, since attention of prompts is in no graph.",
        auto="FULL_AND_PIECEWISE where the kernel set runs operators one by one, else NONE",
    )
    enforce_eager: bool = field(False, "No graphs, as cudagraph_mode: NONE.")
    cudagraph_capture_sizes: list[PositiveInt] = field(
        [], "Exactly these sizes are captured: numbers of new tokens to which steps are padded."
    )
    max_cudagraph_capture_size: Auto[PositiveInt] = field(
        "auto", "Larger steps run without graphs.", auto="the least of twice max_num_seqs and 512"
    )
    cuda_graph_sizes: list[PositiveInt] = field(
        [], "Older form of both: one number is max_cudagraph_capture_size, several are cudagraph_capture_sizes."
    )
    max_seq_len_to_capture: Auto[Count] = field(
        "auto", "Steps with a longer sequence run without graphs.", auto="no limit: a graph holds for every length"
    )
    cache_dir: Text | None = field(
        None,
        "Folder of compiled kernels of GPUs, in place of TRITON_CACHE_DIR or the cache folder; within it each version "
        "has a folder of its own.",
    )
