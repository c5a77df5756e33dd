"""Servers of tools: a client of the Model Context Protocol, with bounds on everything that a server may do."""
