"""What adapters change, by torch: adapter after adapter, over the rows that have it."""

from typing import NamedTuple

import torch

from appliance.kernels.gpu.adapters import DeviceAdapters
from appliance.kernels.gpu.products import by_rows
from appliance.kernels.gpu.step import DeviceStep
from appliance.program.adapters import AdapterEmbed, AdapterLinear
from appliance.program.slots import Extent


class DeviceRows(NamedTuple):
    """The adapters of some rows. present: the slots of the step's adapters, as the host knows them, which a graph does
    not; slots, scales: [rows] and [rows, 1]."""

    adapters: DeviceAdapters
    present: tuple[int, ...]
    slots: torch.Tensor
    scales: torch.Tensor
    fixed_rows: int

    @classmethod
    def of(cls, extent: Extent, step: DeviceStep) -> "DeviceRows":
        """Returns those of the live rows of an extent, which are looked up once a step."""
        found = step.known.get((cls, extent))
        if not isinstance(found, cls):
            found = step.known[cls, extent] = cls._looked_up(extent, step)
        return found

    @classmethod
    def _looked_up(cls, extent: Extent, step: DeviceStep) -> "DeviceRows":
        given, adapters = step.arrays.host.adapters, step.bound.adapters
        slots, scales = step.arrays.adapter_slots, step.arrays.adapter_scales
        assert adapters is not None, "the program was bound with places"
        assert slots is not None, "and its steps have slots"
        assert scales is not None, "and scales"
        present = () if given is None else tuple(sorted({slot for slot in given.slots.tolist() if slot >= 0}))
        of_rows = step.by_row(slots, extent), step.by_row(scales, extent)[:, None]
        return cls(adapters, present, *of_rows, step.bound.fixed_rows)

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Returns x @ weight.T in f32."""
        wide = weight.float()
        return by_rows(lambda rows: rows @ wide.T, x, self.fixed_rows)

    def some(self, rows: torch.Tensor) -> "DeviceRows":
        """Returns those of some of the rows, in this order."""
        return self._replace(slots=self.slots[rows], scales=self.scales[rows])

    def change(self, weight: str, x: torch.Tensor, out: torch.Tensor) -> None:
        """Changes out [rows, width] in place, which is the product of x [rows, D] with a weight [width, D]."""
        for slot in self.present:
            change = self.adapters.change(slot, weight)
            if change is None:
                continue
            before = out.float()
            added = torch.zeros_like(before)
            if change.up is not None:
                low = x.float() if change.down is None else self.product(x.float(), change.down)
                added = self.product(low, change.up)
            if change.shift is not None:
                added = added + change.shift.float()
            if change.stretch is not None:
                added = added + change.stretch.float() * before
            is_mine = (self.slots == slot)[:, None]
            out.copy_(torch.where(is_mine, before + self.scales * added, before))


def adapter_linear(op: AdapterLinear, step: DeviceStep) -> None:
    rows, x, out, start = DeviceRows.of(op.x.slot.extent, step), step.span(op.x), step.span(op.out), 0
    for part, width in zip(op.parts, op.widths, strict=True):
        rows.change(part, x, out[:, start : start + width])
        start += width


def adapter_embed(op: AdapterEmbed, step: DeviceStep) -> None:
    rows, out = DeviceRows.of(op.out.extent, step), step.slot(op.out)
    if (embeds := step.arrays.embeds) is not None:  # an adapter changes the table, and what was given is no row of it
        rows = rows._replace(slots=torch.where(embeds[1] < 0, rows.slots, -1))
    for slot in rows.present:
        change = rows.adapters.change(slot, op.part)
        if change is None or change.up is None:
            continue
        added = change.up[step.arrays.token_ids.long()].float()
        added = added if change.down is None else rows.product(added, change.down.T)
        is_mine = (rows.slots == slot)[:, None]
        out.copy_(torch.where(is_mine, out.float() + op.scale * rows.scales * added, out.float()))
