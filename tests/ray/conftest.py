"""A small Ray cluster on this machine's loopback, for the tests of `appliance.ray`.

Ray is an extra of a few hundred megabytes, which the environment of development does not have: `make ray` makes one
that has it and runs these tests. Without Ray they are skipped.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.trained import make_echo_model

HOST = "127.0.0.1"
SPEC = """\
api_version: appliance/v1
kind: Deployment
name: echo
model: {{source: {model}, served_names: [echo], max_model_len: 256}}
hardware: {{num_threads: 1, memory: {{kv_cache: 4MiB}}}}
scheduler: {{max_num_seqs: 4}}
endpoints: {{http: {{host: 127.0.0.1, port: {port}}}}}
"""


@pytest.fixture(scope="session")
def echo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("echo-model")
    make_echo_model(folder)
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Yields the cluster, which has one node and takes more; this process is its driver."""
    # Ray reads it when it is imported: its processes then listen on the loopback address alone.
    os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0")
    # A folder `ray` on the path, as Ray leaves one below /tmp, would be a package without contents.
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="ray is not installed")
    import ray

    node = {"num_cpus": 8, "memory": 8 << 30, "object_store_memory": 100 << 20}
    made = cluster_utils.Cluster(head_node_args={**node, "include_dashboard": False}, initialize_head=True)
    try:
        ray.init(address=made.address, log_to_driver=False, logging_level="warning")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
