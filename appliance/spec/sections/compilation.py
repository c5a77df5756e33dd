"""`compilation`: graphs and compiled kernels of accelerators."""

from typing import ClassVar, Literal

from appliance.spec.fields import Section, field
from appliance.spec.scalars import Count, PositiveInt, Text


class CompilationSection(Section):
    """Graph capture and compilation."""

    doc: ClassVar[str] = "Graph capture and compilation on accelerators. A CPU has neither."

    level: Literal[0, 1, 2, 3] = field(3, "0 is none; 3 is for production.", built=False)
    enforce_eager: bool = field(False, "No graphs.", built=False)
    max_seq_len_to_capture: Count = field(8192, "Longer contexts run without graphs.", built=False)
    cuda_graph_sizes: list[PositiveInt] = field(
        [],
        "Batch sizes of graphs: none is up to twice max_num_seqs, one is a range up to it, several are exactly those.",
        built=False,
    )
    cudagraph_capture_sizes: list[PositiveInt] = field([], "Exactly these token counts are captured.", built=False)
    cache_dir: Text | None = field(None, "Where compiled kernels are kept.", built=False)
