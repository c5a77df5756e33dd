"""vLLM's `profiler_config`: what of it `observability.profiler_dir` does, and why the rest has no place."""

from collections.abc import Mapping
from typing import Any, Final

from appliance.importing.draft import Draft, with_variables

_FOLDER: Final = "torch_profiler_dir"
_KIND: Final = "profiler"
_WHOLE: Final = "a trace runs from start_profile to stop_profile"
_OPERATORS: Final = "a trace has steps, operators and sequences, with their tokens and seconds alone"
# What traces are like, whatever is asked for: the values that ask for it (None: any), and the reason.
_FIXED: Final[dict[str, tuple[tuple[Any, ...] | None, str]]] = {
    "torch_profiler_with_stack": (None, "a trace has the model's operators, and no stacks of Python"),
    "torch_profiler_dump_cuda_time_total": (None, "sums are what stop_profile returns"),
    "torch_profiler_use_gzip": ((True,), "traces are written compressed"),
    "torch_profiler_with_flops": ((False,), _OPERATORS),
    "torch_profiler_record_shapes": ((False,), _OPERATORS),
    "torch_profiler_with_memory": ((False,), _OPERATORS),
    "detailed_trace_annotation": ((False,), _OPERATORS),
    "capture_torch_profiler": ((False,), "captures of graphs are not traced; the boot report has their seconds"),
    "ignore_frontend": (None, "a trace has the engine, and spans of requests are observability.traces"),
    "delay_iterations": ((0,), _WHOLE),
    "max_iterations": ((0,), _WHOLE),
    "warmup_iterations": ((0,), _WHOLE),
    "wait_iterations": ((0,), _WHOLE),
    "active_iterations": (None, _WHOLE),
}


def place_profiler(draft: Draft, flag: str, given: Mapping[str, Any], *, is_whole: bool) -> None:
    """Places the members. is_whole: they are all that is said, so that a kind without a folder has none."""
    for name, value in given.items():
        origin = f"{flag} {name}={value}"
        if name == _FOLDER and not isinstance(value, str):
            draft.leave(origin, "it has to be the path of a folder")
        elif name == _FOLDER:
            draft.put("observability.profiler_dir", with_variables(str(value)), origin)
        elif name == _KIND:
            _place_kind(draft, origin, value, has_folder=bool(given.get(_FOLDER)) or not is_whole)
        elif name not in _FIXED:
            draft.leave(origin, "vLLM's profiler_config has no such member")
        else:
            allowed, reason = _FIXED[name]
            if allowed is None or value in allowed:
                draft.notes.append(f"{origin}: {reason}")
            else:
                draft.leave(origin, reason)
    if is_whole and given.get(_FOLDER) and given.get(_KIND) is None:
        draft.leave(f"{flag} {_FOLDER}", "vLLM takes a folder with profiler: torch only")


def _place_kind(draft: Draft, origin: str, value: Any, *, has_folder: bool) -> None:
    if value == "torch" and not has_folder:
        draft.leave(origin, "torch_profiler_dir has to name the folder of the traces")
    elif value not in ("torch", None):
        draft.leave(origin, "traces are the engine's own; a profiler of the device is started from outside")
