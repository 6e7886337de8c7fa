"""The training loop of all experiments, and its parts."""
