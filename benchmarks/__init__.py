"""Speed: one file per claim, both sides in one run."""
