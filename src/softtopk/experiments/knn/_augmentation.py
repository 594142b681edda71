"""Random changes of images that leave their class as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """Shifts each image by up to ``shift`` pixels, and reflects half of them if ``flip``.

    (b, c, h, w) -> (b, c, h, w). What comes in at an edge repeats that edge.
    """

    shift: int = 0
    flip: bool = False

    def __call__(self, images: Tensor) -> Tensor:
        b, _, h, w = images.shape
        device = images.device
        if self.shift:
            padded = F.pad(images, [self.shift] * 4, mode="replicate")
            corner = torch.randint(2 * self.shift + 1, (2, b, 1), device=device)
            rows = corner[0] + torch.arange(h, device=device)
            cols = corner[1] + torch.arange(w, device=device)
            sample = torch.arange(b, device=device)[:, None, None]
            # Indices around a slice put the channel last: (b, h, w, c), which is channels-last.
            images = padded[sample, :, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2)
        if self.flip:
            turned = torch.rand(b, 1, 1, 1, device=device) < 0.5
            images = torch.where(turned, images.flip(-1), images)
        return images
