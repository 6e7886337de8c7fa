"""Verdicts on results trained elsewhere: no training, no params files, no database.

`judging` has the public functions, which `import claimcheck` gives; `reading` reads and checks tables of claims and
results; `units` decides the unit of results; `tables` judges tables and writes a page; `trackers` reads what others'
tools store; `plot` draws with matplotlib; `command` has the commands.  Needs NumPy, SciPy and pandas.
"""


class TableError(ValueError):
    """A table that can't be read at all; the message says what it lacks."""
