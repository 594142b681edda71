"""The loss of a k-nearest-neighbours classifier, through a relaxed top-k."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._checks import check_choice, check_eps, check_integer
from .._dispatch import is_ordinary, is_readable, is_traced
from ..functional import log_soft_topk, soft_topk
from ..functional._temperature import common_eps
from ..nn._temperature import Tempered
from ..relaxations import get
from ._distances import METRICS, Metric, check_features, pairwise_distances
from ._training import Outcome

Objective = Literal["vote", "nll"]
OBJECTIVES: tuple[Objective, ...] = ("vote", "nll")
Reduction = Literal["mean", "sum", "none"]

#: Arguments of a relaxation that are not the caller's to choose.
_RESERVED = frozenset({"scores", "k", "mask", "dim", "largest"})

_FAR = 1e-10  # a vote below it may be rounded; its square is still a normal number of float32

#: A name of `softtopk.relaxations`, or a function of the same signature.
RelaxationLike = str | Callable[..., Tensor]


def knn_loss(
    query: Tensor,
    query_labels: Tensor,
    templates: Tensor,
    template_labels: Tensor,
    k: int,
    *,
    objective: Objective = "vote",
    relaxation: RelaxationLike = "soft-topk",
    eps: float | None = None,
    metric: Metric = "euclidean",
    query_ids: Tensor | None = None,
    template_ids: Tensor | None = None,
    options: Mapping[str, Any] | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Loss of classifying queries by the soft vote of their k nearest templates.

    With A the relaxed indicator of the k templates nearest to query i, the vote for its class is

    .. math:: v_i = \frac1k \sum_j A_{ij} [y_j = y_i],

    a relaxation of ``(template_labels[distances.topk(k, largest=False).indices] ==
    query_labels[:, None]).float().mean(-1)``. It is between 0 and 1 where A is not negative and
    sums to k, as it does, up to rounding, for all of `softtopk.relaxations`. A function of your own
    need not do so. Where A is not bounded by one, as NeuralSort's and others' is not, a single
    template may have more than 1/k of the votes.

    Args:
        query: (m, d) features.
        query_labels: (m,) integers.
        templates: (n, d) features.
        template_labels: (n,) integers.
        k: How many neighbours vote, at most the number of templates of every query.
        objective: ``"vote"`` is the paper's: mind the sign, which the paper leaves out. What it
            calls the loss is :math:`k v_i` and is to be maximised; the loss here is
            :math:`-v_i`. ``"nll"`` is :math:`-\log v_i`, which pulls hardest on the queries that
            are furthest from their class, be they the ones to learn from or mislabelled.
        relaxation: A name of `softtopk.relaxations`, or a function of that signature, which is
            given the negative distances.
        eps: Its temperature. None is, for ``"soft-topk"``, the one at which about 2k templates of
            a query are undecided (`softtopk.eps_for`). It follows the features, so that their scale
            does not matter; with one that stays, as in `KNNObjective`, growing features sharpen the
            selection. With a normalised cost None is 1e-3, the paper's value for MNIST. Other
            relaxations have their own default.
        metric: Distance between features, see `pairwise_distances`.
        query_ids: (m,) integers that say which sample a query is; ``template_ids`` likewise, (n,).
            A pair of equal ids is excluded: a query is not its own template. No ids are needed if
            ``query`` and ``templates`` are the same tensor, in one of two senses: they are one
            Python object; or they are views of the same memory with the same shape and strides, as
            ``features`` and ``features.detach()`` or ``features[:]`` are. The latter cannot be seen
            inside `torch.compile` and the transforms of `torch.func`. A copy, such as
            ``features.clone()``, and a slice of the rows need ids.
        options: Further arguments of the relaxation, without ``eps``.
        reduction: ``"mean"`` or ``"sum"`` over the queries, or ``"none"``: (m,).

    Where a vote is zero its logarithm is not taken: with ``"soft-topk"`` the logarithm is computed
    without the vote (`log_soft_topk`), so that the loss goes on growing, and its gradient does not
    vanish, however far away the query's class is. With other relaxations it is log(v + e²), e
    being the machine epsilon (in float16 0.011), whose gradient fades below e². A query that has no
    template of its class has the constant loss -log(e²), or 0 with ``"vote"``: there is nothing to
    learn from it.

    >>> query = torch.tensor([[0.0], [1.0]], requires_grad=True)
    >>> templates = torch.tensor([[0.1], [0.4], [0.8]])
    >>> loss = knn_loss(
    ...     query,
    ...     torch.tensor([0, 1]),
    ...     templates,
    ...     torch.tensor([0, 1, 1]),
    ...     2,
    ...     objective="vote",
    ...     eps=0.1,
    ... )
    >>> loss
    tensor(-0.7381, grad_fn=<MeanBackward0>)
    """
    check_choice("objective", objective, OBJECTIVES)
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    check_features("query", query)
    check_features("templates", templates)
    _check_labels("query_labels", query_labels, "query", query)
    _check_labels("template_labels", template_labels, "templates", templates)
    selection = _Selection(k, relaxation, eps, metric, options)
    allowed = _allowed(query, templates, query_ids, template_ids)
    scores = selection.scores(query, templates, allowed)
    selection.settle(scores, allowed)
    same = query_labels.unsqueeze(1) == template_labels
    losses, _ = selection.losses(scores, allowed, same, objective)
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def soft_vote(
    query: Tensor,
    templates: Tensor,
    template_labels: Tensor,
    k: int,
    *,
    classes: int | None = None,
    relaxation: RelaxationLike = "soft-topk",
    eps: float | None = None,
    metric: Metric = "euclidean",
    query_ids: Tensor | None = None,
    template_ids: Tensor | None = None,
    options: Mapping[str, Any] | None = None,
) -> Tensor:
    """Share of every class in the soft vote of the k nearest templates: (m, classes).

    A relaxation of ``one_hot(template_labels[distances.topk(k, largest=False).indices],
    classes).float().mean(-2)``. The rows sum to one (if the relaxation sums to k, as it should).

    Args:
        classes: Their number, None for the largest label plus one.

    The other arguments are those of `knn_loss`.

    >>> templates = torch.tensor([[0.1], [0.4], [0.8]])
    >>> soft_vote(torch.zeros(1, 1), templates, torch.tensor([0, 1, 1]), 2, eps=0.2)
    tensor([[0.4968, 0.5032]])
    """
    check_features("query", query)
    check_features("templates", templates)
    _check_labels("template_labels", template_labels, "templates", templates)
    selection = _Selection(k, relaxation, eps, metric, options)
    allowed = _allowed(query, templates, query_ids, template_ids)
    scores = selection.scores(query, templates, allowed)
    selection.settle(scores, allowed)
    if classes is None:
        classes = max(1, int(template_labels.max()) + 1)
    check_integer("classes", classes)
    if is_readable(template_labels):
        low, high = int(template_labels.min()), int(template_labels.max())
        if low < 0:
            raise ValueError(f"template_labels must not be negative, got {low}")
        if high >= classes:
            raise ValueError(f"classes={classes} is too few for template_labels up to {high}")
    return _shares(selection.indicator(scores, allowed), template_labels, classes) / k


class KNNObjective(Tempered):
    """Trains a feature network to predict by nearest neighbours, for `Training`.

    Called as ``objective(inputs, labels, n_queries)``: of the samples, the first ``n_queries`` are
    the queries, the others their templates. All pass through the network together. With
    ``weights``, (n,), the loss is the weighted mean over the queries; a template counts as one.

    Args:
        network: Maps (n, ...) samples to (n, d) features.
        k: How many neighbours vote. The paper has 9.
        objective: Those of `knn_loss`, or ``"mse"`` for labels (n, outputs) that are real numbers:
            the squared error of the neighbours' soft mean, sum_j A_ij y_j / k, averaged over the
            outputs. It has no accuracy.
        leave_one_out: Let every sample be a query, with all the others as its templates. That
            makes more of the features at hand, and the network is where the time goes.

    The other arguments are those of `knn_loss`, but an ``eps`` of None is decided by the first
    training batch and then kept, in the state dict too. The accuracy in the `Outcome` is that of
    the class with the largest soft vote, among the templates of the minibatch.

    >>> objective = KNNObjective(torch.nn.Linear(4, 2), k=3)
    >>> outcome = objective(torch.randn(20, 4), torch.arange(20) % 2, 10)
    >>> outcome.loss.shape
    torch.Size([])
    """

    uses_templates = True

    def __init__(
        self,
        network: nn.Module,
        k: int = 9,
        *,
        objective: Objective | Literal["mse"] = "vote",
        relaxation: RelaxationLike = "soft-topk",
        eps: float | None = None,
        metric: Metric = "euclidean",
        options: Mapping[str, Any] | None = None,
        leave_one_out: bool = False,
    ) -> None:
        super().__init__()
        check_choice("objective", objective, (*OBJECTIVES, "mse"))
        self.network = network
        self.leave_one_out = leave_one_out
        self.objective: Objective | Literal["mse"] = objective
        self._selection = _Selection(k, relaxation, eps, metric, options)
        self._selection.check_objective(objective)
        if self._selection.is_calibrated:
            self._hold(None, 2.0 * k, False, like=_scalar_of(network))
        elif "eps" in self._selection.options:
            self._hold(self._selection.options["eps"], None, False)

    def forward(
        self, inputs: Tensor, labels: Tensor, n_queries: int, weights: Tensor | None = None
    ) -> Outcome:
        """The outcome of a batch: its first ``n_queries`` against the rest, or each against all."""
        features = self.network(inputs)
        check_features("the network's output", features)
        queries, templates, own, others, allowed = features, features, labels, labels, None
        if self.leave_one_out:
            allowed = _others(features)
        else:
            queries, templates = features[:n_queries], features[n_queries:]
            own, others = labels[:n_queries], labels[n_queries:]
        scores = self._selection.scores(queries, templates, allowed)
        eps = self._eps_now(lambda width: self._selection.calibrate(scores, allowed, width))
        if eps is not None:  # else it is the relaxation's own
            self._selection.options["eps"] = eps
        losses, accuracy = self._judge(scores, allowed, own, others)
        if weights is None:
            return Outcome(losses.mean(), accuracy)
        weights = weights[: len(queries)].to(losses)
        total = weights.sum().clamp(min=torch.finfo(losses.dtype).tiny)  # of zeros, the loss is 0
        return Outcome((weights * losses).sum() / total, accuracy)

    def _judge(
        self, scores: Tensor, allowed: Tensor | None, own: Tensor, others: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss of every query (m,), and the accuracy."""
        if self.objective == "mse":
            means = self._selection.indicator(scores, allowed) @ others / self._selection.k
            return (means - own).square().mean(-1), scores.new_full((), math.nan)
        same = own.unsqueeze(1) == others
        losses, indicator = self._selection.losses(scores, allowed, same, self.objective)
        shares = _shares(indicator.detach(), others, int(torch.max(own.max(), others.max())) + 1)
        return losses, (shares.argmax(1) == own).float().mean()

    def extra_repr(self) -> str:
        return (
            f"{self._selection}, objective={self.objective!r}, leave_one_out={self.leave_one_out}"
        )


def check_options(name: str, options: Mapping[str, Any] | None, relaxation: RelaxationLike) -> None:
    """Check that ``options``, which the caller knows as ``name``, are some of the relaxation's."""
    if not options:
        return
    if not isinstance(options, Mapping):
        raise TypeError(f"{name} must be a dict or None, got {options!r}")
    if "eps" in options:
        raise ValueError(f"{name} must not have 'eps'; give it as eps={options['eps']!r} instead")
    reserved = sorted(_RESERVED & options.keys())
    if reserved:
        raise ValueError(f"{name} must not have {reserved[0]!r}: the loss determines it")
    known = _known_options(get(relaxation))
    unknown = [option for option in options if known is not None and option not in known]
    if known is not None and unknown:
        raise ValueError(
            f"{name} has {unknown[0]!r}, which relaxation={relaxation!r} does not take; "
            f"it takes {', '.join(known) or 'none'}"
        )


def _known_options(relaxation: Callable[..., Tensor]) -> list[str] | None:
    """Names of the further arguments of a relaxation; None if it does not tell."""
    if torch.compiler.is_compiling():  # which cannot look at a signature
        return None
    try:
        parameters = inspect.signature(relaxation).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    named = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [option for option in named if option not in _RESERVED | {"eps"}]


class _Selection:
    """The settings of a soft choice of nearest neighbours, checked."""

    def __init__(
        self,
        k: int,
        relaxation: RelaxationLike,
        eps: float | None,
        metric: Metric,
        options: Mapping[str, Any] | None,
    ) -> None:
        self.k = check_integer("k", k)
        check_choice("metric", metric, METRICS)
        self.name, self.metric = relaxation, metric
        self.relaxation = get(relaxation)
        check_options("options", options, relaxation)
        self.options = dict(options or {})
        self.is_ours = self.relaxation is soft_topk
        if self.is_ours:
            self.options.setdefault("normalize", None)
            if eps is None and self.options["normalize"] is not None:
                eps = 1e-3  # the paper's, for MNIST
        self.is_calibrated = self.is_ours and eps is None
        if eps is not None:
            check_eps(eps, torch.Size())
            self.options["eps"] = eps

    def check_objective(self, objective: str) -> None:
        if objective == "nll" and self.options.get("hard"):
            raise ValueError(
                "objective='nll' takes the logarithm of votes that hard=True makes zero; use "
                "objective='vote' or hard=False"
            )

    def settle(self, scores: Tensor, allowed: Tensor | None) -> None:
        """Take the eps of these scores, if none was given."""
        if self.is_calibrated:
            found = self.calibrate(scores, allowed, 2.0 * self.k)
            self.options["eps"] = found.nan_to_num(nan=1.0)

    def calibrate(self, scores: Tensor, allowed: Tensor | None, width: float) -> Tensor:
        """The eps that leaves ``width`` templates of a query undecided."""
        return common_eps(
            scores,
            self.k,
            width=min(width, scores.shape[-1]),
            dim=-1,
            largest=True,
            mask=allowed,
            sorted=False,
        )

    def scores(self, queries: Tensor, templates: Tensor, allowed: Tensor | None) -> Tensor:
        """Negative distances (m, n), after a check that there are k templates to choose."""
        distances = pairwise_distances(queries, templates, self.metric)
        n = len(templates)
        if allowed is not None and len(queries) and is_readable(allowed):
            n = int(allowed.sum(1).min())
        if n < self.k:
            left = "" if n == len(templates) else f" after {len(templates) - n} are excluded"
            raise ValueError(
                f"k={self.k} neighbours cannot be chosen from {n} templates{left}; "
                "lower k or give more templates"
            )
        return -distances

    def indicator(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        indicator = self.relaxation(scores, self.k, mask=allowed, **self.options)
        if indicator.shape != scores.shape:
            raise ValueError(
                f"relaxation {self.name!r} must return the shape of the scores, "
                f"{tuple(scores.shape)}, got {tuple(indicator.shape)}"
            )
        return indicator

    def losses(
        self, scores: Tensor, allowed: Tensor | None, same: Tensor, objective: Objective
    ) -> tuple[Tensor, Tensor]:
        """The loss of every query (m,), and the indicator (m, n)."""
        self.check_objective(objective)
        if objective == "nll" and self.is_ours:
            return self._exact_nll(scores, allowed, same)
        indicator = self.indicator(scores, allowed)
        votes = (indicator * same).sum(-1) / self.k
        if objective == "vote":
            return -votes, indicator
        return -torch.log(votes + _floor(votes.dtype)), indicator

    def _exact_nll(
        self, scores: Tensor, allowed: Tensor | None, same: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The logarithm of the vote where float32 holds the vote, and elsewhere a sum in the domain
        of logarithms. Of that sum, few rows are in need, and it takes ten times as long."""
        if not self._may_split(scores):
            return self._logarithmic_nll(scores, allowed, same)
        indicator = soft_topk(scores, self.k, mask=allowed, **self._soft_options)
        votes = (indicator * same).sum(-1) / self.k
        far = votes < _FAR
        losses = -torch.log(votes.masked_fill(far, 1.0))
        if far.any():
            rows = far.nonzero().squeeze(-1)
            part = None if allowed is None else allowed[rows]
            exact, _ = self._logarithmic_nll(scores[rows], part, same[rows])
            losses = losses.index_copy(0, rows, exact)
        return losses, indicator.detach()

    def _may_split(self, scores: Tensor) -> bool:
        """Whether rows may be told apart by their votes, and computed without the others."""
        return (
            is_readable(scores)
            and scores.dtype in (torch.float32, torch.float64)
            and self.options["normalize"] != "batch"
        )

    def _logarithmic_nll(
        self, scores: Tensor, allowed: Tensor | None, same: Tensor
    ) -> tuple[Tensor, Tensor]:
        log_indicator = log_soft_topk(scores, self.k, mask=allowed, **self._soft_options)
        log_votes = log_indicator.masked_fill(~same, -math.inf)
        # A row of -inf alone would have a gradient of NaN.
        none = (log_votes == -math.inf).all(-1, keepdim=True)
        log_votes = torch.logsumexp(log_votes.masked_fill(none, 0.0), -1) - math.log(self.k)
        worst = math.log(_floor(log_votes.dtype))
        return -log_votes.masked_fill(none.squeeze(-1), worst), log_indicator.detach().exp()

    @property
    def _soft_options(self) -> dict[str, Any]:
        """Without ``hard``: there are no votes that it could round, see `check_objective`."""
        return {name: value for name, value in self.options.items() if name != "hard"}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"k={self.k}, relaxation={self.name!r}, metric={self.metric!r}, {options}"


def _scalar_of(network: nn.Module) -> Tensor:
    """A number where the network is, and of its kind; torch's defaults do not matter."""
    for parameter in network.parameters():
        if parameter.is_floating_point():
            return torch.empty((), dtype=parameter.dtype, device=parameter.device)
    return torch.empty((), dtype=torch.float32, device="cpu")


def _floor(dtype: torch.dtype) -> float:
    # In float16 the inverse, which is the gradient of the logarithm, would overflow.
    info = torch.finfo(dtype)
    return max(info.eps**2, 8 / info.max)


def _shares(indicator: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Sum of the columns of each class: (m, n) -> (m, classes)."""
    return indicator.new_zeros(len(indicator), classes).index_add(1, labels, indicator)


def _allowed(
    query: Tensor, templates: Tensor, query_ids: Tensor | None, template_ids: Tensor | None
) -> Tensor | None:
    """Which templates a query may choose, (m, n); None for all."""
    same = _is_same(query, templates)
    if same and query_ids is None and template_ids is None:
        return _others(query)
    if same:
        query_ids = template_ids if query_ids is None else query_ids
        template_ids = query_ids if template_ids is None else template_ids
    if query_ids is None and template_ids is None:
        return None
    if query_ids is None or template_ids is None:
        given, missing = ("query_ids", "template_ids")[:: 1 if template_ids is None else -1]
        raise ValueError(f"{given} is given without {missing}; give both or neither")
    _check_labels("query_ids", query_ids, "query", query)
    _check_labels("template_ids", template_ids, "templates", templates)
    allowed = query_ids.unsqueeze(1) != template_ids
    if same:  # in case that the ids differ: a row is never its own template
        allowed = allowed.fill_diagonal_(False)
    return allowed


def _is_same(query: Tensor, templates: Tensor) -> bool:
    """Whether the rows of both are the same, not just equal."""
    if query is templates:
        return True
    # Not is_readable, which is false on devices that have to be waited for: the result must not
    # depend on the device, and an address is known at once.
    for tensor in (query, templates):
        if is_traced(tensor) or not is_ordinary(tensor):
            return False
    return (
        query.shape == templates.shape
        and query.stride() == templates.stride()
        and query.dtype == templates.dtype
        and query.device == templates.device
        and query.numel() > 0  # what is empty has no address
        and query.data_ptr() == templates.data_ptr()
    )


def _others(features: Tensor) -> Tensor:
    """All but itself: (m, m)."""
    return ~torch.eye(len(features), dtype=torch.bool, device=features.device)


def _check_labels(name: str, labels: Tensor, what: str, features: Tensor) -> None:
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(labels).__name__}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        raise TypeError(f"{name} must be integers, got {labels.dtype}; use .long()")
    if labels.shape != features.shape[:1]:
        raise ValueError(
            f"{name} must be one integer for each of the {len(features)} rows of {what}, "
            f"got shape {tuple(labels.shape)}"
        )
