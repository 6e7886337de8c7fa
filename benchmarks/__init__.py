"""Speed: one file a claim, both sides in one run."""
