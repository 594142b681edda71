"""The checks that scikit-learn has for its own estimators, all of them."""

import os
import unittest
import warnings

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from softtopk.knn import SoftKNNClassifier

# Skips itself: it is about arrays of other libraries, for which scipy has to be told so by a
# variable of the environment before it is imported. The estimator declares no support for them.
SKIPPED = {"check_array_api_input"} if "SCIPY_ARRAY_API" not in os.environ else set()


@parametrize_with_checks([SoftKNNClassifier(epochs=6)])
def test_sklearn(estimator, check) -> None:
    try:
        with warnings.catch_warnings():
            # Checks provoke warnings, and look for them themselves.
            warnings.simplefilter("default")
            check(estimator)
    except unittest.SkipTest as reason:
        if check.func.__name__ in SKIPPED:
            raise
        pytest.fail(f"skipped: {reason}")
