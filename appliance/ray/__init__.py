"""Deployments on a Ray cluster: Serve applications, batches over its nodes, and a stage of Ray Data."""
