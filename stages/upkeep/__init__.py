"""Maintenance of results: publishing, releasing models, verifying trails, removing what is no longer needed."""
