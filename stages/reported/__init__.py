"""Verdicts on results trained elsewhere: no training, no params files, no database.

`judging` has the public functions, which `import claimcheck` gives; `tables` reads and checks tables of claims and
results, and writes a page; `trackers` reads what others' tools store; `plot` draws with matplotlib; `command` has the
commands.  Needs NumPy, SciPy and pandas.
"""


class TableError(ValueError):
    """A table that can't be read at all; the message says what it lacks."""
