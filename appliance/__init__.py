"""appliance: one YAML spec becomes an engine plan, and the plan becomes a server, a batch run or a benchmark."""

__version__ = "0.1.0"
