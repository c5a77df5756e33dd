"""Requests to models that pool: their inputs, and what is made of the numbers that come back."""
