"""Verbs of other tools, and our verb for each."""

_VERBS = {
    "apply": ("serve", "run", "start", "up", "deploy", "launch", "create", "load"),
    "down": ("stop", "rm", "remove", "delete", "kill", "destroy", "undeploy", "unload"),
    "status": ("ps", "ls", "list", "show", "get", "info", "top", "inspect", "health", "models"),
    "validate": ("check", "lint", "verify", "test"),
    "complete": ("generate", "completion-request", "infer"),
    "chat": ("ask", "talk", "prompt", "query"),
    "bench": ("benchmark", "perf"),
    "pull": ("download", "fetch"),
    "import": ("convert", "migrate-from"),
    "plan": ("compile", "estimate"),
    "logs": ("log",),
    "init": ("new",),
    "render": ("export",),
    "rollback": ("undo",),
    "doctor": ("env", "hardware", "devices", "gpus"),
}
_OURS = {word: verb for verb, words in _VERBS.items() for word in words}
_HINTS = {
    "restart": "`appliance down NAME && appliance apply SPEC`; an apply of a changed spec restarts what must restart",
    "reload": "`appliance apply SPEC` changes what runs without ending a stream where it can",
    "upgrade": "install the new version, then `appliance apply SPEC`",
}


def hint_for(word: str) -> str | None:
    """Returns what to type in place of `word`; None for a word that is not in this table."""
    if word in _OURS:
        return f"`appliance {_OURS[word]}`"
    return _HINTS.get(word)
