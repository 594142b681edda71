"""What `softtopk figures` draws: for each figure its numbers, its picture and its caption.

>>> from softtopk.experiments.figures import CATALOGUE
>>> list(CATALOGUE)
['indicator', 'plan', 'temperatures', 'sorted_plan', 'knn', 'gradient', 'bias', 'convergence']
>>> plans = CATALOGUE["plan"].make()
>>> plans.hard.sum(0) * 7  # the mass of each anchor
tensor([5.0000, 2.0000], dtype=torch.float64)
"""

from ._catalogue import CATALOGUE
from ._command import Options, main
from ._exhibit import Exhibit
from ._plans import plan_of

__all__ = ["CATALOGUE", "Exhibit", "Options", "main", "plan_of"]
