"""Pictures of the operators, drawn with matplotlib into axes of yours.

>>> import torch
>>> from softtopk import plotting, soft_topk
>>> scores = torch.linspace(-2, 2, 30)
>>> figure = plotting.new_figure()
>>> plotting.draw_selection(figure.axes[0], scores, soft_topk(scores, 5, eps=0.5))

The functions take tensors, arrays or lists, and axes of any figure, also one of ``pyplot``. They
need the extra ``plot``. ``softtopk figures`` draws figures of the paper with them.
"""

from . import style
from ._accuracy import Convergence, draw_bias, draw_convergence
from ._attention import draw_attention
from ._neighbours import draw_neighbours, draw_votes
from ._plan import draw_plan, draw_plan_map
from ._selection import draw_gradient, draw_indicator, draw_selection
from .style import legend_beside, new_figure, tidy

__all__ = [
    "Convergence",
    "draw_attention",
    "draw_bias",
    "draw_convergence",
    "draw_gradient",
    "draw_indicator",
    "draw_neighbours",
    "draw_plan",
    "draw_plan_map",
    "draw_selection",
    "draw_votes",
    "legend_beside",
    "new_figure",
    "style",
    "tidy",
]
