"""Reads YAML into a typed Spec with line and column.

loaded = load_spec("deployment.yaml", overrides=["cache.block_size=32"])
loaded.spec.model.source
"""

from appliance.spec.deployment import DeploymentSpec
from appliance.spec.loader import LoadedSpec, SetField, Source, iter_set_fields, load_spec, load_text

__all__ = ["DeploymentSpec", "LoadedSpec", "SetField", "Source", "iter_set_fields", "load_spec", "load_text"]
