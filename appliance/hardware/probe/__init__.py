"""Reading HardwareFacts from a machine: /proc, /sys, control groups, NVML."""
