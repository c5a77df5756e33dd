"""Numbers that tell arrays which come again, with other numbers in them, from arrays that are new."""

from itertools import count

new_revision = count(1).__next__  # of this process: no two are the same
