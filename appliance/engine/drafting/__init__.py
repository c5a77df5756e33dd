"""Drafters: who proposes the tokens that may come next."""
