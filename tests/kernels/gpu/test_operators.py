"""Who runs an operator is what the plan says."""

import pytest

from appliance.catalog import gpu_operators
from appliance.kernels.gpu.operators.by_reference import by_reference
from appliance.kernels.gpu.operators.table import implementation
from appliance.program.operators import OPERATORS


def test_the_plan_knows_what_torch_runs() -> None:
    by_us = {record.__name__ for record in OPERATORS if implementation(record, {}) is not by_reference}
    assert by_us == gpu_operators.BY_TORCH | gpu_operators.BY_LIBRARY


def test_the_plan_knows_what_triton_runs() -> None:
    parts = pytest.importorskip("appliance.kernels.gpu.parts")
    pytest.importorskip("triton")
    assert {record.__name__ for record in parts.triton_parts().table} == gpu_operators.BY_TRITON
