"""The table of grammar back-ends, by name. They are imported when a constraint comes."""

from collections.abc import Callable
from importlib import import_module

from appliance.engine.grammar.interface import Backend, GrammarError
from appliance.engine.messages import Vocabulary

DEFAULT_BACKEND = "guidance"  # whether constraints are taken at all is live, and the front ends' to say
BACKENDS = {"guidance": "appliance.engine.grammar.guidance:GuidanceBackend"}


def backend_loader(name: str | None, vocab_size: int) -> Callable[[Vocabulary], Backend]:
    """Makes the back-end of a vocabulary of `vocab_size` logits; None refuses all."""

    def load(vocabulary: Vocabulary) -> Backend:
        if name is None:
            raise GrammarError("this engine takes no constraints")
        module, _, attribute = BACKENDS[name].partition(":")
        backend: Backend = getattr(import_module(module), attribute)(vocabulary, vocab_size)
        return backend

    return load
