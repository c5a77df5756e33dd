"""Several engines with one plan, as one: which of them takes a request, and what all of them have to follow."""
