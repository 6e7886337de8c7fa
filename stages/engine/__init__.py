"""Where groups of runs execute."""
