"""What keeps results true: publishing, releasing models, verifying trails, removing what is no longer needed."""
