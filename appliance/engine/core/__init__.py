"""Scheduling and KV bookkeeping: plain data in, plain data out. No I/O, no clock, no numpy."""
