"""One folder a paper; the listing is the registry."""
