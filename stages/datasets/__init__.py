"""Data sets: parse raw files into splits; embedded stand-ins."""
