"""Runs groups of runs on this machine, under leases."""
