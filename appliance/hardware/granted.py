"""The part of a machine that a cluster gives to one of several who share it."""

import msgspec

from appliance.hardware.facts import HardwareFacts


def granted(facts: HardwareFacts, num_cores: int | None = None, memory_bytes: int | None = None) -> HardwareFacts:
    """Returns the facts of that part. None: all that is there. A grant of more than there is changes nothing.

    Rates that were measured with all cores are left out where there are fewer.
    """
    cores = min(num_cores or facts.cpu.num_cores, facts.cpu.num_cores)
    limit = min(memory_bytes or facts.memory.limit_bytes, facts.memory.limit_bytes)
    replace = msgspec.structs.replace
    return replace(
        facts,
        cpu=replace(facts.cpu, num_cores=cores, num_threads=min(facts.cpu.num_threads, max(cores, 1) * 2)),
        memory=replace(facts.memory, limit_bytes=limit),
        measured=facts.measured if cores == facts.cpu.num_cores else None,
    )
