"""Revision numbers: reused arrays with changed contents keep their revision, new arrays get a new one."""

from itertools import count

new_revision = count(1).__next__  # unique in this process
