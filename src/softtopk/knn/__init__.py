"""A k-nearest-neighbours classifier whose features are trained through the top-k."""

from ._distances import pairwise_distances
from ._loss import KNNObjective, knn_loss, soft_vote
from ._networks import MLP, ConvNet, ResNet, default_network, resnet18
from ._training import DivergedError, Outcome, Recipe, Training
