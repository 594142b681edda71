"""A k-nearest-neighbours classifier whose features are trained through the top-k."""
