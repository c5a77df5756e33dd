"""The table of grammar back-ends, by name. A back-end is imported when a constraint comes."""

from collections.abc import Callable
from importlib import import_module

from appliance.engine.grammar.interface import GrammarBackend, GrammarError
from appliance.engine.messages import Vocabulary

DEFAULT_BACKEND = "guidance"  # the front ends decide whether to take constraints: that setting is live
BACKENDS = {"guidance": "appliance.engine.grammar.guidance:GuidanceBackend"}


def backend_loader(name: str | None, vocab_size: int) -> Callable[[Vocabulary], GrammarBackend]:
    """Returns a function that makes the back-end for a vocabulary of `vocab_size` logits. It raises GrammarError for
    `name` None, which refuses all constraints."""

    def load(vocabulary: Vocabulary) -> GrammarBackend:
        if name is None:
            raise GrammarError("this engine takes no constraints")
        module, _, attribute = BACKENDS[name].partition(":")
        backend: GrammarBackend = getattr(import_module(module), attribute)(vocabulary, vocab_size)
        return backend

    return load
