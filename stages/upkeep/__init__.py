"""Maintenance of results: publishing, releasing models, verifying trails, removing leftovers."""
