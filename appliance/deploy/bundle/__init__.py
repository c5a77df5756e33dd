"""A support bundle: what explains a deployment to someone else, without its secrets."""
