"""All figures, in the order of the index."""

from __future__ import annotations

from typing import Any

from ._bias import BIAS
from ._convergence import CONVERGENCE
from ._exhibit import Exhibit
from ._gradients import GRADIENT
from ._indicator import INDICATOR
from ._knn import KNN
from ._plans import PLAN, SORTED_PLAN
from ._temperatures import FOUR_TEMPERATURES

CATALOGUE: dict[str, Exhibit[Any]] = {
    figure.name: figure
    for figure in (
        INDICATOR,
        PLAN,
        FOUR_TEMPERATURES,
        SORTED_PLAN,
        KNN,
        GRADIENT,
        BIAS,
        CONVERGENCE,
    )
}
