"""Trained runs: outcomes in the run store, result lines, and digests of the code that made them."""
