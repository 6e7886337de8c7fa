"""Verdicts on results trained elsewhere: no training, no params files, no database.

`judging` has the public functions, which `import claimcheck` gives; `printed` reads numbers as papers print them;
`tables` reads and checks tables of claims and results; `report` writes one page; `plot` draws with
matplotlib.  Needs NumPy, SciPy and pandas.
"""
