"""Speed benchmarks: one file per claim, with both sides measured in one run."""
