"""The lock file: digests of everything that changes answers."""
