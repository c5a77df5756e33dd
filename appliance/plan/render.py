"""A plan as text for people: one screen; with `explain`, every decision and every refused kernel too."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from appliance.base.units import format_size
from appliance.catalog.pooling import PoolingKind
from appliance.plan.boot import Comparison
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.serving_types import AuthPlan, ServingPlan
from appliance.plan.types import (
    RANDOM_WEIGHTS,
    AdaptersPlan,
    EnginePlan,
    GraphsPlan,
    KernelChoice,
    KvGroupPlan,
    MemoryPlan,
    ModellingPlan,
    VectorActivation,
)

LABEL = 11  # columns of the labels on the left


def render_json(plan: EnginePlan) -> str:
    """Stable: fields in the order of the schema, two spaces an indent."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode()


def render_text(plan: EnginePlan, *, explain: bool = False) -> str:
    lines = [*_heading(plan), "", *_weights(plan), "", *_memory(plan)]
    if explain:
        lines += ["", *_decisions(plan), "", *_kernels(plan)]
    lines += [f"warning: {text}" for text in plan.warnings]
    lines += [f"cannot run: {text}" for text in plan.cannot_run]
    return "\n".join(lines)


def _row(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}".rstrip()


def _heading(plan: EnginePlan) -> Iterator[str]:
    model, scheduler, cache, kernels = plan.model, plan.scheduler, plan.cache, plan.kernels
    yield _row("plan", f"{plan.name}   engine {plan.engine_sha256[:12]}   serving {plan.serving_sha256[:12]}")
    yield _row("machine", f"{plan.hardware}, profile {plan.profile}")
    threads = f", {kernels.num_threads} threads" if plan.device == "cpu" else ""
    alike = ", rows round alike in every batch" if kernels.batch_invariant and plan.device != "cpu" else ""
    yield _row("kernels", f"{kernels.kernel_set} ({kernels.support}){threads}{alike}")
    yield from _replicas(plan.parallel)
    yield _row("model", f"{model.architecture}, {model.format}, served as {', '.join(model.served_names)}")
    if (family := model.family) is not None:
        yield _row("family", f"{family.family}, of the package {family.package} {family.version}")
    if model.format == "dummy":
        yield _row("weights", RANDOM_WEIGHTS)
    if (code := model.modelling) is not None:
        yield _row("code", _code(code))
    if (experts := model.experts) is not None:
        chosen = f"{experts.num_chosen} of {experts.num_experts} a token in {experts.num_layers} layers"
        read = f"a token reads {format_size(experts.bytes_per_token)} of {format_size(experts.size_bytes)}"
        yield _row("experts", f"{chosen}; {read}")
    if (pooling := model.pooling) is not None:
        made = f"{pooling.width:,} numbers, {_MADE[pooling.activation]}"
        yield _row("pools", f"{_ROWS[pooling.kind]} to {pooling.task}: {made}")
    yield from _adapters(plan.adapters)
    yield _row("context", f"{model.max_model_len:,} tokens")
    order = scheduler.policy if scheduler.scheduler_cls is None else f"in the order of {scheduler.scheduler_cls}"
    yield _row(
        "step",
        f"up to {scheduler.max_num_seqs} sequences and {scheduler.max_num_batched_tokens:,} tokens, {order}"
        f"{', chunked prefill' if scheduler.chunked_prefill else ''}",
    )
    caching = f"prefix caching by {cache.hash_algorithm}" if cache.prefix_caching else "no prefix caching"
    yield from _graphs(plan.graphs)
    blocks = f"{cache.num_blocks:,} blocks of {cache.block_size} tokens in {plan.precision.kv_dtype}"
    ahead = f", {cache.prefault_blocks:,} of them resident ahead" if cache.prefault_blocks else ""
    yield _row("cache", f"{blocks}{ahead}, {caching}")
    if (swap := cache.swap) is not None:
        size = format_size(swap.num_places * swap.place_bytes)
        yield _row("preempted", f"moved to {size} of host memory where that takes less time than to compute again")
    yield _row("listens", f"{_address(plan.serving)}, {_keys(plan.serving.auth)}")


def _replicas(parallel: ParallelPlan) -> Iterator[str]:
    """What follows is of each: its threads, its memory, its cache."""
    first, here = parallel.first_replica, parallel.replicas
    if here > 1:
        others = f" (numbers {first} to {first + here - 1} of {parallel.data})" if here < parallel.data else ""
        yield _row("replicas", f"{here} engines{others}, each with the threads and the memory shown here")
    elif parallel.data > 1:
        yield _row("replicas", f"number {first} of {parallel.data}; a balancer before the servers spreads requests")


def _graphs(graphs: GraphsPlan) -> Iterator[str]:
    if graphs.num_graphs:
        kinds = {"sequences that decode": graphs.decode_sizes, "tokens of other steps": graphs.token_sizes}
        sizes = [f"{len(each)} sizes to {each[-1]} {what}" for what, each in kinds.items() if each]
        yield _row("graphs", f"{graphs.mode}, {' and '.join(sizes)}")


_ROWS: Final[Mapping[PoolingKind, str]] = {
    "cls": "the first token",
    "last": "the last token",
    "mean": "the mean of all tokens",
    "all": "every token",
}
_MADE: Final[Mapping[VectorActivation, str]] = {
    "none": "as they are",
    "normalize": "of length 1",
    "sigmoid": "through a sigmoid",
    "softmax": "through a softmax",
}


def _adapters(adapters: AdaptersPlan | None) -> Iterator[str]:
    if adapters is None:
        return
    slots = f"{adapters.max_loras} slots of rank {adapters.max_rank} in {adapters.dtype}"
    yield _row("adapters", f"{slots}, with places at {adapters.num_modules} weights")
    for each in adapters.served:
        rules = f"{f', scale {each.scale:g}' if each.scale != 1.0 else ''}{', pinned' if each.pinned else ''}"
        yield _row("", f"{each.name}: rank {each.rank}, {each.num_modules} modules{rules}, sha256 {each.sha256}")


def _code(code: ModellingPlan) -> str:
    library = f"that of transformers {code.transformers_version}"
    whose = "the checkpoint's own" if code.origin == "checkpoint" else library
    files = ", ".join(f"{file.name} {file.sha256[:12]}" for file in code.files)
    return f"{whose}, not ours: {code.model_class} ({files})"


def _address(serving: ServingPlan) -> str:
    listen = serving.listen
    return listen.uds or f"{listen.scheme}://{listen.host}:{listen.port}{serving.http.root_path}"


def _keys(auth: AuthPlan) -> str:
    count, file = len(auth.key_hashes), auth.keys_file
    named = [f"{count} API key{'s' * (count != 1)}"] * bool(count) + [f"the API keys of {file}"] * bool(file)
    return " and ".join(named) or "no API keys"


def _weights(plan: EnginePlan) -> list[str]:
    rows = [("weights", "role", "tensors", "stored", "planned", "as", "error")]
    for entry in plan.precision.weights:
        form = "/".join(
            str(each) for each in (entry.layout, entry.group_size, entry.sub_group_size) if each is not None
        )
        sizes = format_size(entry.stored_bytes), format_size(entry.planned_bytes)
        rows.append((entry.storage, entry.role, f"{entry.num_tensors:,}", *sizes, form, entry.error))
    total_stored = sum(entry.stored_bytes for entry in plan.precision.weights)
    total_planned = sum(entry.planned_bytes for entry in plan.precision.weights)
    inputs = "8-bit" if plan.precision.quantize_activations else plan.precision.activations
    rows.append(("total", "", "", format_size(total_stored), format_size(total_planned), "", f"activations {inputs}"))
    return table(rows, right=(2, 3, 4))


def _memory(plan: EnginePlan) -> list[str]:
    first = plan.memory[0]
    same = f" (each of {len(plan.memory)} devices)" if len(plan.memory) > 1 else ""
    share = first.budget_bytes / first.device_bytes if first.device_bytes else 0
    rows = [(f"{first.device}{same}", "size", "how")]
    rows += [(item.name, format_size(item.size_bytes), item.formula) for item in first.items]
    used = sum(item.size_bytes for item in first.items)
    of = f"{format_size(first.budget_bytes)} budget = {share:.2f} x {format_size(first.device_bytes)}"
    rows.append(("total", format_size(used), f"of {of}, {format_size(first.budget_bytes - used)} left"))
    return [*table(rows, right=(1,)), *_cache_lines(first)]


def _cache_lines(memory: MemoryPlan) -> Iterator[str]:
    yield ""
    has_several = len({group.group for group in memory.kv_groups}) > 1
    for group in memory.kv_groups:
        reach = "full attention" if group.window is None else f"window {group.window:,}"
        shape = f"{group.num_layers} layers x {group.num_kv_heads} heads x {_widths(group)}"
        name = f"KV group {group.group}" if has_several else "KV"
        yield _row(name, f"{shape}, {reach}: {format_size(group.bytes_per_token)} a token")
    yield _row("holds", f"{memory.num_tokens:,} tokens = {memory.num_full_sequences:g} x the longest sequence")


def _widths(group: KvGroupPlan) -> str:
    """Writes the width of keys, and that of values where it is another."""
    return f"{group.head_dim} and {group.value_dim}" if group.value_dim else f"{group.head_dim}"


def _decisions(plan: EnginePlan) -> list[str]:
    rows = [("decision", "value", "from", "because")]
    rows += [(each.path, _short(each.value), each.source, each.reason) for each in plan.decisions]
    return table(rows)


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."


def _kernels(plan: EnginePlan) -> list[str]:
    """Operators by who runs them and by what was refused for them; most often one list for all."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[KernelChoice]] = {}
    for choice in plan.kernels.choices:
        groups.setdefault((choice.implementation, tuple(choice.refused.items())), []).append(choice)
    lines = []
    for (_, refused), choices in groups.items():
        lines.append(_row(choices[0].implementation, "  " + ", ".join(choice.operator for choice in choices)))
        lines += table([("refused", "because"), *refused])
    return lines


def render_comparison(rows: Sequence[Comparison]) -> str:
    """Planned against measured."""
    lines = [("memory", "planned", "measured", "difference", "")]
    for row in rows:
        verdict = "" if row.is_close else "more than 10 % off"
        sizes = format_size(row.planned_bytes), format_size(row.measured_bytes)
        lines.append((row.name, *sizes, f"{row.difference:+.1%}", verdict))
    return "\n".join(table(lines, right=(1, 2, 3)))


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Columns two spaces apart; those in `right` end at the same place. The last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[0] = max(widths[0], LABEL - 2)
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
