"""Metrics and costs of a trained model."""
