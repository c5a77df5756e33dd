"""Where constraints are tried before the engine's own process compiles them."""
