"""Wrong arguments: the error names the argument, the value it had and what would be right."""

import math
import re

import pytest
import torch
from tiny_decoder import Tiny

from softtopk.seq2seq import (
    beam_membership_loss,
    beam_search,
    hybrid_loss,
    soft_beam_loss,
    soft_beam_search,
    teacher_forcing_loss,
)

GOLD = torch.tensor([[4, 1, 5, 3], [5, 3, 0, 0], [1, 4, 3, 0]])
LOSSES = [soft_beam_loss, beam_membership_loss, hybrid_loss]
SEARCHES = [beam_search, soft_beam_search]


def call(function, **changes):
    """Call with good arguments but for the changes."""
    decoder = Tiny(0)
    arguments = {
        "step": decoder.step,
        "init_state": decoder.state(),
        "embedding": decoder.embedding,
        "beam_size": 2,
    }
    if function in SEARCHES:
        arguments["max_len"] = 4
    else:
        arguments["gold"] = GOLD
    if function is teacher_forcing_loss:
        del arguments["beam_size"]
    if function is hybrid_loss:
        arguments["objective"] = "soft-beam"
    arguments.update(changes)
    positional = [arguments.pop(name) for name in ("step", "init_state", "embedding")]
    return function(*positional, **arguments)


@pytest.mark.parametrize("function", [*SEARCHES, *LOSSES, teacher_forcing_loss])
def test_good_arguments(function):
    """The errors below are due to the changes."""
    found = call(function)
    values = found if isinstance(found, torch.Tensor) else found.log_likelihoods
    assert values.isfinite().all()


@pytest.mark.parametrize("function", [*SEARCHES, *LOSSES])
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"beam_size": 0}, ValueError, r"beam_size must be at least 1, got beam_size=0"),
        ({"beam_size": -2}, ValueError, r"beam_size must be at least 1, got beam_size=-2"),
        ({"beam_size": 2.0}, TypeError, r"beam_size must be an int, got beam_size=2.0"),
        ({"beam_size": True}, TypeError, r"beam_size must be an int, got beam_size=True"),
        ({"eos": 6}, ValueError, r"eos must be a token, below 6.* got 6"),
        ({"bos": -1}, ValueError, r"bos must be at least 0, got bos=-1"),
        ({"pad": 1.5}, TypeError, r"pad must be an int, got pad=1.5"),
        ({"embedding": torch.zeros(6)}, ValueError, r"embedding must .*\(V, D\).* got .*\(6,\)"),
        ({"embedding": torch.nn.Embedding(6, 3)}, ValueError, r"embedding .*got Embedding.*weight"),
        ({"init_state": {"rest": [None]}}, ValueError, r"init_state must hold at least one tensor"),
        (
            {"init_state": (torch.zeros(3, 4), torch.zeros(2))},
            ValueError,
            r"init_state must share their first axis.*\(3, 4\), \(2,\)",
        ),
        ({"init_state": torch.zeros(0, 4)}, ValueError, r"init_state must have at least one"),
        ({"init_state": torch.tensor(1.0)}, ValueError, r"init_state .*first axis.*shapes \(\)"),
        ({"init_state": [torch.zeros(3, 4), 7]}, TypeError, r"state must be made of .* got int"),
        (
            {"step": lambda inputs, state: (torch.zeros(len(inputs), 5), state)},
            ValueError,
            r"step must return .*\(\d, 6\).* got \(\d, 5\)",
        ),
        (
            {"step": lambda inputs, state: (torch.zeros(1, 6), state)},
            ValueError,
            r"step must return .*\(\d, 6\).* got \(1, 6\)",
        ),
    ],
)
def test_shared_arguments(function, changes, kind, message):
    with pytest.raises(kind, match=message):
        call(function, **changes)


@pytest.mark.parametrize("function", [soft_beam_search, *LOSSES])
@pytest.mark.parametrize(
    ("eps", "kind"),
    [
        (0.0, ValueError),
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        ("0.1", TypeError),
        (None, TypeError),
    ],
)
def test_eps(function, eps, kind):
    with pytest.raises(kind, match=rf"eps must be .* got eps={re.escape(repr(eps))}"):
        call(function, eps=eps)


@pytest.mark.parametrize("function", [*LOSSES, teacher_forcing_loss, soft_beam_search])
@pytest.mark.parametrize(
    ("gold", "kind", "message"),
    [
        (GOLD.float(), TypeError, r"gold must be .*int64, got torch.float32"),
        (GOLD.tolist(), TypeError, r"gold must be a tensor .* got list"),
        (GOLD[0], ValueError, r"gold must be of shape \(B, T\) with B = 3.* got \(4,\)"),
        (GOLD[:2], ValueError, r"gold must .* got \(2, 4\); a state of nn.GRU"),
        (GOLD[:, :0], ValueError, r"gold must be of shape .* all sizes above 0, got \(3, 0\)"),
        (GOLD + 1, ValueError, r"gold must hold tokens from 0 to 5, .*got 6"),
        (GOLD - 1, ValueError, r"gold must hold tokens from 0 to 5, .*got -1"),
        (GOLD * torch.tensor([[1], [0], [1]]), ValueError, r"gold must .*; row 1 has none"),
        (
            torch.cat([torch.full((3, 1), 2), GOLD], 1),
            ValueError,
            r"gold must begin with .*bos=2, in front of every row: leave it out",
        ),
        (GOLD.roll(1, 1), ValueError, r"gold must have its padding, pad=0, after the tokens"),
    ],
)
def test_gold(function, gold, kind, message):
    with pytest.raises(kind, match=message):
        call(function, gold=gold)


@pytest.mark.parametrize(
    ("function", "changes", "kind", "message"),
    [
        (soft_beam_loss, {"follow": "last"}, ValueError, r"follow must be one of .* got .*'last'"),
        (
            soft_beam_loss,
            {"selection_clip": -1.0},
            ValueError,
            r"selection_clip must be finite and not negative, got selection_clip=-1.0",
        ),
        (soft_beam_loss, {"normalize": "rows"}, ValueError, r"normalize must be .* got .*'rows'"),
        (soft_beam_search, {"solver": "newton"}, ValueError, r"solver must be .* got .*'newton'"),
        (
            hybrid_loss,
            {"objective": "bleu"},
            ValueError,
            r"objective must be one of 'soft-beam', 'membership', 'risk', got .*'bleu'",
        ),
        (hybrid_loss, {"rho": 1.2}, ValueError, r"rho must be between 0 and 1, got rho=1.2"),
        (hybrid_loss, {"rho": -0.1}, ValueError, r"rho must be between 0 and 1, got rho=-0.1"),
        (hybrid_loss, {"rho": math.nan}, ValueError, r"rho must be between 0 and 1, got rho=nan"),
        (hybrid_loss, {"rho": "0.8"}, TypeError, r"rho must be a number, got rho='0.8'"),
        (
            beam_membership_loss,
            {"candidates": 2},
            ValueError,
            r"candidates must be more than beam_size=2, got candidates=2",
        ),
        (beam_membership_loss, {"candidates": 9.5}, TypeError, r"candidates must be an int"),
        (beam_search, {"max_len": 0}, ValueError, r"max_len must be at least 1, got max_len=0"),
        (beam_search, {"n_best": 3}, ValueError, r"n_best must be at most beam_size=2, got .*3"),
        (beam_search, {"n_best": 0}, ValueError, r"n_best must be at least 1, got n_best=0"),
        (beam_search, {"length_penalty": -1.0}, ValueError, "length_penalty must be .*=-1.0"),
        (beam_search, {"length_penalty": 50}, ValueError, "length_penalty must be at most 5, got"),
        (beam_search, {"length_penalty": "0"}, TypeError, "length_penalty must be a number"),
        (soft_beam_search, {"max_len": None}, ValueError, r"max_len must be given if gold is not"),
        (
            soft_beam_search,
            {"gold": GOLD, "max_len": 3},
            ValueError,
            r"max_len must be at least the length of gold, 4, got 3",
        ),
    ],
)
def test_arguments_of_one(function, changes, kind, message):
    with pytest.raises(kind, match=message):
        call(function, **changes)


@pytest.mark.parametrize("function", [*SEARCHES, *LOSSES])
@pytest.mark.parametrize(
    ("value", "message"), [(2.5, r"at most 0, got 2\.5: use log_softmax"), (math.nan, r"got NaN")]
)
def test_logits_in_place_of_log_probabilities(function, value, message):
    changes = {"rho": 0.0} if function is hybrid_loss else {}
    with pytest.raises(ValueError, match=rf"step must return log-probabilities, {message}"):
        call(function, step=lambda x, state: (x.new_full((len(x), 6), value), state), **changes)


@pytest.mark.parametrize("function", [soft_beam_search, soft_beam_loss])
def test_a_state_that_cannot_be_averaged(function):
    state = {"hidden": torch.zeros(3, 4), "bias": torch.full((3, 2), -math.inf)}
    with pytest.raises(ValueError, match=r"init_state must be finite .*\(3, 2\).* booleans"):
        call(function, init_state=state)


@pytest.mark.parametrize("function", [*LOSSES, teacher_forcing_loss])
def test_gold_that_may_begin_with_the_begin_token(function):
    """A single sentence, as in a last batch; and the end alone, where both are one token."""
    state = Tiny(0, batch=1).state()
    assert call(function, init_state=state, gold=torch.tensor([[2, 5, 3]])).isfinite()
    assert call(function, gold=torch.full((3, 1), 3), bos=3).isfinite()


def test_options_of_another_objective():
    """Also where the objective has no weight."""
    message = "follow is no option of objective='membership', which has beam_size"
    for rho in (0.5, 1.0):
        with pytest.raises(TypeError, match=message):
            call(hybrid_loss, objective="membership", rho=rho, follow="gold")


@pytest.mark.parametrize("function", [*SEARCHES, *LOSSES, teacher_forcing_loss])
def test_what_a_step_returns(function):
    with pytest.raises(TypeError, match=r"step must return a pair, .* got Tensor"):
        call(function, step=lambda x, state: x.new_full((len(x), 6), -2.0))
    with pytest.raises(ValueError, match=r"step must return a state .* got .* \(1, 4\)"):
        call(function, step=lambda x, state: (x.new_full((len(x), 6), -2.0), x.new_zeros(1, 4)))


@pytest.mark.parametrize("function", [*SEARCHES, *LOSSES])
def test_a_step_that_returns_something_of_each_sentence(function):
    """The first call may have a row for each sentence: those after it have more."""
    memory = torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"step must return a state .* 6 rows, .* got .* \(3, 4\)"):
        call(function, step=lambda x, state: (x.new_full((len(x), 6), -2.0), (x, memory)))


@pytest.mark.parametrize("function", [*LOSSES, soft_beam_search])
@pytest.mark.parametrize("row", [[4, 1, 5, 0], [4, 3, 5, 3], [3, 3, 0, 0]])
def test_the_end_of_gold(function, row):
    gold = GOLD.clone()
    gold[1] = torch.tensor(row)
    with pytest.raises(ValueError, match=r"gold must have the end token, eos=3, once .*row 1 is"):
        call(function, gold=gold, **({"rho": 0.0} if function is hybrid_loss else {}))
