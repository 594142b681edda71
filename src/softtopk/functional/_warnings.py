"""Warnings of the package."""


class ConvergenceWarning(UserWarning):
    """An iterative solver stopped before it reached its tolerance."""
