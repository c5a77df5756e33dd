"""Several API processes on one listening socket, before one engine."""
