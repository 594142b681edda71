"""The kNN experiments."""
