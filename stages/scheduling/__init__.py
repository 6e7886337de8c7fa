"""Schedules missing runs: groups them, leases them, trains them in processes, and estimates their cost."""
