"""Queries of the results database, and the types of the answers made of them; no HTTP."""
