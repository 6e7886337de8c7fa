"""Builds the results database from files, checks the published record against git's history, and writes reports."""
