"""What the isolation of grammars costs: the first and the repeated use of a schema, with the sandbox and without.

    python docs/benchmarks/trials.py SPEC.yaml [--schemas 60]

Milliseconds from the request for a grammar to the grammar, without a model: medians over schemas of one form, each
used for the first time and then once more. The compilers with and without a sandbox take turns, so that a busy machine
disturbs both alike. `start` is of the sandbox's process: seconds until its first verdict, its processor time until
then, and the memory that is resident after it.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from start import children_of, processor_seconds

from appliance.base.environ import cache_dir
from appliance.engine.grammar.backends import DEFAULT_BACKEND, backend_loader
from appliance.engine.grammar.compiler import GrammarCompiler
from appliance.engine.grammar.interface import GrammarError, UntriedError
from appliance.engine.grammar.sandbox.client import Sandbox
from appliance.engine.messages import Constraint, Vocabulary
from appliance.plan.prepare import prepare
from appliance.service.text_side import load_text_side

Schema = dict[str, object]


def small(number: int) -> Schema:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 40}, f"age{number}": {"type": "integer"}},
        "required": ["name"],
        "additionalProperties": False,
    }


def large(number: int) -> Schema:
    """Some 6 KB: an array of objects of objects."""
    parts = {f"part {place}": small(place + number) for place in range(40)}
    whole = {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    return {"type": "array", "items": whole}


SCHEMAS: Mapping[str, Callable[[int], Schema]] = {"small": small, "large": large}


def constraint(schema: Schema) -> Constraint:
    return Constraint(kind="json_schema", source=msgspec.json.encode(schema).decode(), field="schema")


def started(sandbox: Sandbox, vocabulary: Vocabulary) -> str:
    """Starts the sandbox, and tells what its process takes."""
    began, before = time.perf_counter(), set(children_of(os.getpid()))
    sandbox.start(vocabulary)
    sandbox.try_out(Constraint(kind="choice", source='["yes","no"]', field="choice"))
    seconds = time.perf_counter() - began
    (pid,) = set(children_of(os.getpid())) - before
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return f"{seconds:.2f} s, {processor_seconds(pid):.2f} s of a processor, {resident >> 20} MiB resident"


def milliseconds(compiler: GrammarCompiler, schema: Schema) -> float:
    wish = constraint(schema)
    began = time.perf_counter()
    key = compiler.key(wish)
    outcome = compiler.kept(key)
    if outcome is None:
        compiler.begin(key, wish).result()
        outcome = compiler.collect(key)
    elapsed = 1e3 * (time.perf_counter() - began)
    assert not isinstance(outcome, GrammarError | UntriedError | None), outcome
    return elapsed


def measure(compilers: Mapping[str, GrammarCompiler], make: Callable[[int], Schema], count: int) -> list[str]:
    """A line a compiler."""
    for compiler in compilers.values():
        milliseconds(compiler, make(-1))  # waits until the vocabulary is there
    first: dict[str, list[float]] = {name: [] for name in compilers}
    again: dict[str, list[float]] = {name: [] for name in compilers}
    for number in range(count):
        for name, compiler in compilers.items():
            first[name].append(milliseconds(compiler, make(number)))
            again[name].append(milliseconds(compiler, make(number)))
    return [
        f"{name:8}first {statistics.median(first[name]):7.2f} ms ({min(first[name]):.2f}-{max(first[name]):.2f})"
        f"   repeated {statistics.median(again[name]):.3f} ms"
        for name in compilers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--schemas", type=int, default=60, help="of each form")
    given = parser.parse_args()
    text = load_text_side(prepare(given.spec).plan, cache_dir())
    vocabulary, vocab_size = text.vocabulary(), text.tokenizer.backend.get_vocab_size()
    sandbox = Sandbox(DEFAULT_BACKEND, vocab_size)
    sys.stdout.write(f"vocabulary of {vocab_size:,}\nstart   {started(sandbox, vocabulary)}\n")
    load = backend_loader(DEFAULT_BACKEND, vocab_size)
    compilers = {"without": GrammarCompiler(load), "with": GrammarCompiler(load, sandbox)}
    for compiler in compilers.values():
        compiler.use(vocabulary)
    for name, make in SCHEMAS.items():
        size = len(constraint(make(0)).source)
        sys.stdout.write("\n".join([f"{name} schemas, {size:,} bytes", *measure(compilers, make, given.schemas), ""]))
    for compiler in compilers.values():
        compiler.close()


if __name__ == "__main__":
    main()
