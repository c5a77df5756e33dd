"""The places of the experts of each mixture, on a device."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from appliance.kernels.expert_tables import tables_of
from appliance.kernels.gpu.device import Device
from appliance.program.operators import StepProgram


class DeviceTable(NamedTuple):
    """starts: int64 [E + 1], places: int32 [P], as in ExpertTable."""

    starts: torch.Tensor
    places: torch.Tensor

    def find(self, experts: torch.Tensor) -> torch.Tensor:
        """Returns the places of experts, int32 [rows, k], as operator PlaceExperts says. It asks the device nothing."""
        chosen = experts.long()
        first = self.starts[chosen]
        copies = self.starts[chosen + 1] - first
        rows = torch.arange(len(chosen), device=chosen.device)[:, None]
        return self.places[first + (rows + chosen) % copies]


def device_tables(program: StepProgram, device: Device) -> Mapping[int, DeviceTable]:
    """Returns the table of each mixture whose experts have places."""

    def on_device(array: object, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(array, dtype=dtype).to(device.name, copy=True)

    return {
        mixture: DeviceTable(on_device(table.starts, torch.int64), on_device(table.places, torch.int32))
        for mixture, table in tables_of([program]).items()
    }
