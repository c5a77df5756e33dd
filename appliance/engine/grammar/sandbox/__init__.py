"""The sandbox: tries constraints in a process of its own before the engine compiles them."""
