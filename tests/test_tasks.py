"""The language's floor against brute force, and streams of random numbers that do not touch each other."""

import random

import numpy as np
import pytest
import torch

from resnorm_lib import tasks

LANGUAGE = tasks.MarkovSource.draw(5, 0.3, np.random.default_rng(0))


def test_stationary_law():
    step = np.einsum("ab,abc->bc", LANGUAGE.pairs, LANGUAGE.table)
    assert np.abs(step - LANGUAGE.pairs).max() < 1e-12
    assert LANGUAGE.pairs.sum() == pytest.approx(1)
    assert np.allclose(LANGUAGE.table.sum(-1), 1)


def test_floor_is_the_mean_surprise():
    """Over 20,000 sequences the mean surprise is the floor to within four standard errors."""
    tokens = LANGUAGE.sample(20_000, 12, np.random.default_rng(1))
    each = LANGUAGE.surprise(tokens).mean(1)
    assert abs(each.mean() - LANGUAGE.floor(12)) < 4 * each.std() / np.sqrt(len(each))


def test_entropies_fall_with_context_and_match_enumeration():
    single, pair, triple = LANGUAGE.entropies()
    assert np.log(5) > single > pair > triple > 0
    total = 0.0
    for a in range(5):
        for b in range(5):
            for c in range(5):
                p = LANGUAGE.table[a, b, c]
                total -= LANGUAGE.pairs[a, b] * (p * np.log(p) if p > 0 else 0)
    assert triple == pytest.approx(total, rel=1e-12)
    assert LANGUAGE.floor(4) == pytest.approx((pair + 3 * triple) / 4)


def test_sample_follows_the_table():
    tokens = LANGUAGE.sample(30_000, 3, np.random.default_rng(2))
    start = (tokens[:, 0] == 1) & (tokens[:, 1] == 2)
    seen = np.bincount(tokens[start, 2], minlength=5) / start.sum()
    assert np.abs(seen - LANGUAGE.table[1, 2]).max() < 4 * np.sqrt(0.25 / start.sum())


def test_a_probability_of_zero_is_never_drawn_and_adds_nothing():
    table = np.zeros((2, 2, 2))
    table[..., 0] = 1
    table[0, 0] = table[1, 0] = [0.5, 0.5]
    pairs = np.array([[1 / 3, 1 / 3], [1 / 3, 0]])
    language = tasks.MarkovSource(table, pairs)
    tokens = language.sample(500, 9, np.random.default_rng(0))
    assert np.isfinite(language.surprise(tokens)).all()
    assert np.isfinite(language.entropies()).all()


def test_generators_are_named():
    first = tasks.generator(3, "data").random(4)
    assert np.array_equal(first, tasks.generator(3, "data").random(4))
    assert not np.array_equal(first, tasks.generator(4, "data").random(4))
    assert not np.array_equal(first, tasks.generator(3, "labels").random(4))


def test_gaussian_gives_each_seed_its_own_array():
    many = tasks.gaussian(range(4), "tokens", 3, 2)
    assert many.shape == (4, 3, 2) and many.dtype == torch.float64
    assert torch.equal(many[2], tasks.gaussian([2], "tokens", 3, 2)[0])
    values = tasks.gaussian(range(200), "tokens", 50)
    assert abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05


def test_values_are_the_same_on_every_machine():
    """NumPy promises this for a generator with a fixed bit stream; a change here would move every published number."""
    assert tasks.gaussian([7], "tokens", 2)[0].tolist() == pytest.approx(GOLDEN, abs=0)


GOLDEN = [-1.1275475076675696, 0.27223201738745867]


def test_global_random_state_is_untouched():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    tasks.gaussian([1], "x", 3)
    tasks.MarkovSource.draw(3, 0.5, np.random.default_rng(0)).sample(2, 4, np.random.default_rng(0))
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


@pytest.mark.parametrize("vocabulary, concentration", [(1, 0.5), (4, 0.0), (4, float("nan"))])
def test_bad_language(vocabulary, concentration):
    with pytest.raises(ValueError, match=f"vocabulary = {vocabulary}.*positive concentration"):
        tasks.MarkovSource.draw(vocabulary, concentration, np.random.default_rng(0))
