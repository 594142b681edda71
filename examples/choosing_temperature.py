"""Choosing a temperature: what does a fixed eps do to scores of another scale?

`eps` has the unit of the scores, so one number suits one scale. A width is the number of elements
that are undecided. `WidthSchedule` lowers it during a training, from soft to hard.

Found: eps=0.1 leaves all 100 scores undecided at one scale, 6 at another and none at the third. A
width of 20 leaves 20 undecided at all three, with an eps from 0.00365 to 36.5.
"""

import torch

from softtopk import SoftTopK, WidthSchedule, eps_for, sharpness, soft_topk
from softtopk.plotting import new_figure, style

N = 100
K = 10
EPS = 0.1  # the default of soft_topk
WIDTH = 2 * K  # the default of SoftTopK
SCALES = (0.01, 1.0, 100.0)  # cosines of long vectors; logits; squared distances
torch.manual_seed(0)
scores = torch.randn(N).sort(descending=True).values

figure = new_figure(columns=2, size=(5, 2.8))
left, right = figure.axes
for scale, colour, line in zip(SCALES, style.COLOURS, style.LINES, strict=False):
    scaled = scale * scores
    by_width = eps_for(scaled, K, width=WIDTH)
    undecided = [sharpness(scaled, K, eps).undecided.item() for eps in (EPS, by_width)]
    print(f"scores x {scale:<5g} eps={EPS}: {undecided[0]:3.0f} undecided   ", end="")
    print(f"width={WIDTH}: {undecided[1]:3.0f} undecided, eps={by_width:.3g}")
    left.plot(soft_topk(scaled, K, eps=EPS), line, color=colour, label=f"scores x {scale:g}")
left.set(xlabel="rank of the score", ylabel="A", title=f"eps={EPS} at three scales")
left.legend(frameon=False, fontsize=style.SMALL)

select = SoftTopK(K, width=N)
schedule = WidthSchedule(select, total_steps=30)
for step in range(31):
    selected = select(scores)
    if step % 10 == 0:
        colour, line = style.COLOURS[step // 10], style.LINES[step // 10]
        right.plot(selected, line, color=colour, label=f"step {step}: {select.width:.0f}")
    schedule.step()
right.set(xlabel="rank of the score", title="width annealed to 2")
right.legend(frameon=False, fontsize=style.SMALL)
figure.savefig("choosing_temperature.png", dpi=140)
