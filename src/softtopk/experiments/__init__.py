"""Measurements and training runs: what the command line runs and the documents report."""
