"""Pass `kernels`: the kernel set for this machine, and for each operator why every other candidate was refused."""

from collections.abc import Mapping

import msgspec

from appliance.base.native import build_hint
from appliance.catalog.gpu_operators import gpu_implementation, gpu_refusals
from appliance.catalog.kernel_sets import KERNEL_SETS, MODELLING, KernelSetFacts
from appliance.plan.accelerators import no_device, obstacle
from appliance.plan.binding import BoundRanks, plan_binding
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.lock import plan_lock
from appliance.plan.modelling import Modelled
from appliance.plan.parallel import threads_of_rank
from appliance.plan.program import PlannedProgram
from appliance.plan.types import KernelChoice, KernelPlan, PrecisionPlan
from appliance.program.operators import OPERATORS, Operator, PagedAttention
from appliance.spec.rank_counts import ranks_here, replicas_here

NOT_BUILT = "not in this version"
_DISABLED = "hardware.kernels.disabled"


class Selection(msgspec.Struct, frozen=True):
    chosen: KernelSetFacts
    refused: Mapping[str, str]  # every other set of this kind of device -> reason
    batch_invariant: bool


def select_kernel_set(inputs: PlanInputs, modelled: Modelled, ledger: Ledger) -> Selection:
    """The named set, else the first of the profile's that runs here. Without one that is built: the first it names."""
    if modelled.plan is not None:
        return _modelling_set(inputs, ledger)
    reasons = {entry.name: _obstacle(entry, inputs) for entry in KERNEL_SETS.values() if entry.runs == "programs"}
    disabled = _disabled(inputs, reasons, ledger)
    reasons |= dict.fromkeys(disabled, f"{_DISABLED} lists it")
    named = _named(inputs, reasons, ledger)
    order = [name for name in inputs.profile.kernel_sets if name in KERNEL_SETS and name not in disabled]
    able = [
        name for name in order if KERNEL_SETS[name].is_automatic and not _machine_obstacle(KERNEL_SETS[name], inputs)
    ]
    usable = [name for name in able if not reasons[name]]
    name = named or next(iter([*usable, *able, *order]), "cpu-generic")
    chosen = KERNEL_SETS[name]
    if name in disabled:
        message = f"no kernel set for {inputs.profile.device} is left to choose"
        ledger.refuse(_DISABLED, "plan/kernel-set", message, hint=f"take one out of {_DISABLED}")
    if not chosen.is_built:
        ledger.cannot_run.append(f"the kernel set {name} is {NOT_BUILT}")
    elif lacks := _library_obstacle(chosen, inputs):
        ledger.cannot_run.append(f"the kernel set {name} cannot run: {lacks}")
    elif not named and able and able[0] != name:
        ledger.warnings.append(f"{name} is planned in place of {able[0]}, which is faster: {reasons[able[0]]}")
    if named:
        ledger.take("kernels.kernel_set", "hardware.kernels.kernel_set", name)
    else:
        ledger.decide("kernels.kernel_set", name, "profile", f"the first of profile {inputs.profile.name} that can run")
    others = [KERNEL_SETS[other] for other in reasons if other != name and KERNEL_SETS[other].device == chosen.device]
    refused = {entry.name: reasons[entry.name] or _lesser(entry, name, order) for entry in others}
    return Selection(chosen, refused, _batch_invariant(inputs, chosen, ledger))


def _disabled(inputs: PlanInputs, reasons: Mapping[str, str], ledger: Ledger) -> tuple[str, ...]:
    """Returns the sets that the spec rules out, and refuses names that no set has."""
    named = inputs.spec.hardware.kernels.disabled
    for name in named:
        if name not in reasons:
            message = f"no kernel set is named {name!r}"
            ledger.refuse(_DISABLED, "plan/kernel-set", message, allowed=", ".join(reasons), hint=f"take {name} out")
    known = tuple(name for name in named if name in reasons)
    return ledger.take("kernels.disabled", _DISABLED, known) if known else ()


def _check_attention(inputs: PlanInputs, choices: tuple[KernelChoice, ...], ledger: Ledger) -> None:
    """Takes a name that the planned attention has, and refuses another."""
    path, wanted = "hardware.kernels.attention_backend", inputs.spec.hardware.kernels.attention_backend
    if wanted == AUTO:
        return
    planned = [each.implementation for each in choices if each.operator.startswith(PagedAttention.__name__)]
    names = dict.fromkeys(part for each in planned for part in (each, each.rpartition(": ")[2]))
    if wanted in names:
        ledger.take("kernels.attention_backend", path, wanted)
        return
    has = f"attention runs by {planned[0]} here" if planned else "the model has no attention over a cache"
    allowed = ", ".join((AUTO, *names))
    ledger.refuse(path, "plan/kernel-set", f"{has}, and not by {wanted!r}", allowed=allowed, hint="write auto")


def _modelling_set(inputs: PlanInputs, ledger: Ledger) -> Selection:
    """The set that runs modelling code: a choice of no other is left."""
    named, path = inputs.spec.hardware.kernels.kernel_set, "hardware.kernels.kernel_set"
    if named not in (AUTO, MODELLING):
        message = f"kernel set {named} runs our own decoders, and modelling code runs this model"
        ledger.refuse(path, "plan/kernel-set", message, allowed=f"auto, {MODELLING}", hint="write auto")
    ledger.decide("kernels.kernel_set", MODELLING, "computed", "modelling code that is not ours runs the model")
    return Selection(KERNEL_SETS[MODELLING], {}, _batch_invariant(inputs, KERNEL_SETS[MODELLING], ledger))


def _batch_invariant(inputs: PlanInputs, chosen: KernelSetFacts, ledger: Ledger) -> bool:
    """Whether rows round alike in every batch. Sets that do so at no cost always do."""
    path, spec_path = "kernels.batch_invariant", "hardware.kernels.batch_invariant"
    wanted = inputs.spec.hardware.kernels.batch_invariant
    if chosen.is_batch_invariant:
        reason = f"rows of {chosen.name} round alike in every batch, at no cost"
        reason += ", so false changes nothing" if wanted is False else ""
        return ledger.decide(path, True, "hardware", reason)
    if wanted is True and chosen.can_be_batch_invariant:
        reason = (
            "products by fixed tiles in place of the vendor's library, and decodes attend as prompts do: slower, by"
        )
        return ledger.take(path, spec_path, True, f"{reason} how much is not measured")
    if wanted is True:
        message = f"rows of {chosen.name} round by how many rows are computed with them"
        ledger.refuse(spec_path, "plan/batch-invariant", message, allowed="auto, false", hint="write auto")
    reason = f"a row of {chosen.name} rounds by how many rows are computed with it; near ties may fall to other tokens"
    return ledger.decide(path, False, "hardware", reason)


def _obstacle(entry: KernelSetFacts, inputs: PlanInputs) -> str:
    """Why this machine, version or installation cannot run a set; empty when it can."""
    return _machine_obstacle(entry, inputs) or _library_obstacle(entry, inputs)


def _machine_obstacle(entry: KernelSetFacts, inputs: PlanInputs) -> str:
    """Why this machine or version cannot run a set; empty when it can."""
    if entry.device != inputs.profile.device:
        return f"for {entry.device}, and the profile is for {inputs.profile.device}"
    missing = sorted(set(entry.required_flags) - set(inputs.facts.cpu.flags))
    if missing:
        return f"this CPU has no {', '.join(missing)}"
    return "" if entry.is_built else NOT_BUILT


def _library_obstacle(entry: KernelSetFacts, inputs: PlanInputs) -> str:
    """Says how to get the library of a set; empty if it is installed, or for a machine that is not here."""
    if entry.uses_torch:
        return obstacle(inputs.facts, entry.name)
    built = inputs.facts.built_levels
    if built is None or entry.level is None or entry.level in built:
        return ""
    return f"its native library is not installed; {build_hint(entry.level, built)}"


def _lesser(entry: KernelSetFacts, chosen: str, order: list[str]) -> str:
    if not entry.is_automatic:
        return "an oracle for tests, planned only by name"
    return f"{chosen} is preferred" if entry.name in order else "not in the profile"


def _named(inputs: PlanInputs, reasons: Mapping[str, str], ledger: Ledger) -> str | None:
    name, path = inputs.spec.hardware.kernels.kernel_set, "hardware.kernels.kernel_set"
    if name == AUTO:
        return None
    allowed = ", ".join(known for known, reason in reasons.items() if not reason)
    if name not in reasons:
        message = f"no kernel set is named {name!r}"
        ledger.refuse(path, "plan/kernel-set", message, allowed=f"auto, {allowed}", hint="write auto")
        return None
    if not reasons[name]:
        return name
    message = f"kernel set {name} cannot run on {inputs.facts.name}: {reasons[name]}"
    if not ledger.may_degrade("kernel_set", f"{message}; the best that can is planned"):
        needs_card = KERNEL_SETS[name].device != "cpu" and not inputs.facts.accelerators
        hint = f"{no_device(KERNEL_SETS[name].device)[1]}; or write auto" if needs_card else "write auto"
        ledger.refuse(path, "plan/kernel-set", message, allowed=f"auto, {allowed}", hint=hint)
    return None


def plan_kernels(
    inputs: PlanInputs, selection: Selection, program: PlannedProgram, precision: PrecisionPlan, ledger: Ledger
) -> KernelPlan:
    """One choice an operator of the program; those over weights and the cache once for each type that they meet."""
    chosen = selection.chosen
    _check_states(selection, program, ledger)
    used = {record: _variants(record, program, precision) for record in OPERATORS if _is_ours(record, chosen)}
    of_machine = chosen.support if chosen.device == "cpu" else inputs.profile.support  # that of the generation
    support = of_machine if chosen.is_built else "untested"
    parallel = inputs.spec.parallelism
    bound = plan_binding(inputs, chosen.name, ranks_here(parallel), ledger)
    choices = tuple(_choice(record, variant, selection) for record, found in used.items() for variant in found)
    _check_attention(inputs, choices, ledger)
    return KernelPlan(
        kernel_set=chosen.name,
        support=support,
        choices=choices,
        num_threads=_num_threads(inputs, bound, ledger),
        cpus=bound.cpus,
        nodes=bound.nodes,
        batch_invariant=selection.batch_invariant,
        lock_memory=plan_lock(inputs, chosen, ledger),
        share_prefixes=_share_prefixes(inputs, chosen, program, ledger),
        cache_dir=_cache_dir(inputs, chosen, ledger),
    )


def _cache_dir(inputs: PlanInputs, chosen: KernelSetFacts, ledger: Ledger) -> str | None:
    """Returns the folder of compiled kernels that the spec names, of a set that compiles any."""
    path, named = "compilation.cache_dir", inputs.spec.compilation.cache_dir
    if named is None:
        return None
    if chosen.device == "cpu":
        message = f"{chosen.name} compiles no kernels while it serves, so there is nothing to keep"
        ledger.refuse(path, "plan/kernel-set", message, hint=f"remove {path}")
    return ledger.take("kernels.cache_dir", path, inputs.files.kernels_dir or named)


def _share_prefixes(inputs: PlanInputs, chosen: KernelSetFacts, program: PlannedProgram, ledger: Ledger) -> bool:
    """Whether decodes read a prefix that they share once for all; in layers with a window each reads its own."""
    path, spec_path = "kernels.share_prefixes", "model.disable_cascade_attn"
    is_disabled = inputs.spec.model.disable_cascade_attn
    if chosen.can_share_prefixes and None in program.program.kv_layout().windows:
        return ledger.take(path, spec_path, not is_disabled) if is_disabled else True
    if is_disabled:
        lacks = "no layer sees all tokens" if chosen.can_share_prefixes else f"{chosen.name} shares none"
        ledger.decide(path, False, "computed", f"{spec_path} changes nothing: {lacks}")
    return False


def _check_states(selection: Selection, program: PlannedProgram, ledger: Ledger) -> None:
    """Rows round by their chunk where recurrent states are carried by torch on a CPU."""
    chosen = selection.chosen
    is_by_torch = chosen.uses_torch and chosen.device == "cpu"
    if selection.batch_invariant and is_by_torch and program.program.states:
        message = f"recurrent states of {chosen.name} round by how a prompt is cut"
        path = "hardware.kernels.batch_invariant"
        ledger.refuse(path, "plan/batch-invariant", message, allowed="auto, false", hint="write auto")


def _is_ours(record: type[Operator], kernels: KernelSetFacts) -> bool:
    """Returns whether we run the operator: of modelling code attention alone."""
    return kernels.runs == "programs" or record is PagedAttention


def _variants(record: type[Operator], program: PlannedProgram, precision: PrecisionPlan) -> list[str]:
    """Types that an operator meets in this program; one empty entry where it has only activations."""
    found = program.operators.get(record, ())
    if found and record.touches_cache:
        return [precision.kv_dtype]
    if found and not record.matrices:
        return [""]
    return sorted({form.layout for op in found for form in program.forms_of(op)})


def _choice(record: type[Operator], variant: str, selection: Selection) -> KernelChoice:
    name = f"{record.__name__}[{variant}]" if variant else record.__name__
    refused = {other: _variant_obstacle(other, record, variant) or why for other, why in selection.refused.items()}
    if selection.chosen.uses_torch:
        refused |= gpu_refusals(record.__name__, with_triton=selection.chosen.device != "cpu")
    return KernelChoice(operator=name, implementation=_implementation(record, selection.chosen), refused=refused)


def _implementation(record: type[Operator], chosen: KernelSetFacts) -> str:
    """The set, and in one on torch who runs the operator there."""
    if not chosen.uses_torch:
        return chosen.name
    return f"{chosen.name}: {gpu_implementation(record.__name__, with_triton=chosen.device != 'cpu')}"


def _variant_obstacle(name: str, record: type[Operator], variant: str) -> str:
    entry = KERNEL_SETS[name]
    if record.matrices and variant not in entry.layouts:
        return f"has no {variant} weights"
    if record.touches_cache and variant not in entry.kv_dtypes:
        return f"has no {variant} cache"
    return ""


def _num_threads(inputs: PlanInputs, bound: BoundRanks, ledger: Ledger) -> int:
    wanted, path, cpu = inputs.spec.hardware.num_threads, "hardware.num_threads", inputs.facts.cpu
    if wanted == "auto" and bound.cpus and inputs.spec.hardware.cpu_omp_threads_bind != "auto":
        reason = "one on each CPU of the shortest list of hardware.cpu_omp_threads_bind"
        return ledger.decide("kernels.num_threads", min(map(len, bound.cpus)), "spec", reason)
    if wanted == "auto":
        reason = "physical cores that affinity and cgroup allow; a second thread a core shares its vector units"
        each = threads_of_rank(inputs)
        reason = reason if each == cpu.num_cores else f"a rank's share of {cpu.num_cores} cores"
        return ledger.decide("kernels.num_threads", each, "hardware", reason)
    parallel = inputs.spec.parallelism
    ranks = -(-parallel.tensor * replicas_here(parallel) // parallel.nnodes) if inputs.profile.device == "cpu" else 1
    if wanted * ranks > cpu.num_threads >= ranks:  # more ranks than CPUs are refused as such
        asked = f"{wanted} threads" if ranks == 1 else f"{wanted} threads in each of {ranks} ranks"
        message = f"{asked} on {cpu.num_threads} CPUs that this process may use would wait for each other"
        ledger.refuse(
            path, "plan/threads", message, allowed=f"auto, or 1 to {cpu.num_threads // ranks}", hint="write auto"
        )
    return ledger.take("kernels.num_threads", path, int(wanted))
