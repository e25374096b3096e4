"""Floors against brute force, the teacher's exact numbers, and draws that depend on their generator alone."""

import hashlib
import json
import os
import platform
import random
import subprocess
import sys

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


@pytest.mark.parametrize(
    "table, pairs, message",
    [
        (LANGUAGE.table[:4], LANGUAGE.pairs, r"table has shape \(4, 5, 5\)"),
        (LANGUAGE.table * np.nan, LANGUAGE.pairs, "table holds a row that is no law"),
        (LANGUAGE.table, LANGUAGE.pairs * 2, "pairs holds a row that is no law"),
        (LANGUAGE.table, np.full((5, 5), 1 / 25), "not the stationary law"),
    ],
)
def test_a_language_with_a_wrong_floor_is_refused(table, pairs, message):
    with pytest.raises(ValueError, match=message):
        tasks.MarkovSource(table, pairs)


def test_a_language_that_forgets_slowly_has_its_stationary_law():
    """With seed 72, 10,000 steps leave an error of 5e-5 (its slowest mode decays by 4e-4 a step)."""
    slow = tasks.MarkovSource.draw(8, 0.05, np.random.default_rng(72))
    assert np.abs(np.einsum("ab,abc->bc", slow.pairs, slow.table) - slow.pairs).max() < 1e-14


def test_draws_of_a_language_are_what_they_were():
    """The published chapters are made from these bits."""
    language = tasks.MarkovSource.draw(8, 0.05, tasks.generator(1, "language"))
    tokens = language.sample(40, 12, tasks.generator(2, "tokens"))
    bits = [hashlib.sha256(array.tobytes()).hexdigest()[:16] for array in (language.table, language.pairs, tokens)]
    assert bits == LANGUAGE_BITS


LANGUAGE_BITS = ["7f4c033ba801fb77", "d4cc7460975b89e7", "b8710ee3dec6a5d1"]


@pytest.mark.parametrize("task", [LANGUAGE, tasks.CopyTask(5)])
def test_languages_share_their_methods(task):
    tokens = task.sample(7, 6, np.random.default_rng(3))
    inputs, targets = task.examples(tokens)
    assert tokens.shape == (7, 7) and inputs.shape == targets.shape == task.surprise(tokens).shape == (7, 6)
    assert tokens.dtype == np.int64
    for bad in ({"sequences": 0, "length": 4}, {"sequences": 3, "length": 0}):
        with pytest.raises(ValueError, match="= 0 is not allowed: give at least 1"):
            task.sample(**bad, generator=np.random.default_rng(0))
    with pytest.raises(ValueError, match="length = 0 is not allowed"):
        task.floor(0)
    for token in (-1, 5):
        with pytest.raises(ValueError, match=f"token {token} is not in the vocabulary: give tokens from 0 to 4"):
            task.surprise(np.full((2, 3), token))


def test_next_token():
    inputs, targets = LANGUAGE.examples(np.arange(5)[None])
    assert inputs.tolist() == [[0, 1, 2, 3]] and targets.tolist() == [[1, 2, 3, 4]]


def test_copying():
    """Each target is the token one place before; the floor is what the best model loses, at the first place alone."""
    task = tasks.CopyTask(4)
    tokens = task.sample(4000, 5, np.random.default_rng(0))
    inputs, targets = task.examples(tokens)
    assert np.array_equal(targets[:, 1:], inputs[:, :-1]) and (targets[:, 0] != inputs[:, 0]).mean() > 0.7
    assert np.abs(np.bincount(tokens.reshape(-1)) / tokens.size - 0.25).max() < 4 * np.sqrt(0.1875 / tokens.size)
    first = targets[:, 0] * 4 + inputs[:, 0]
    assert np.abs(np.bincount(first, minlength=16) / 4000 - 1 / 16).max() < 5 * np.sqrt(1 / 16 / 4000)
    assert task.surprise(tokens)[0].tolist() == [np.log(4), 0, 0, 0, 0]
    assert task.floor(5) == pytest.approx(task.surprise(tokens).mean(), rel=1e-12)
    with pytest.raises(ValueError, match="vocabulary = 1 is not allowed"):
        tasks.CopyTask(1)


# The teacher

TEACHER = tasks.Teacher.draw(tasks.generator(0, "teacher"))
X = tasks.generator(0, "held out").standard_normal((400, 8))


def law(teacher, x):
    """p* of one input, by plain sums."""
    hidden = [np.tanh(sum(a * b for a, b in zip(x, column, strict=True))) for column in teacher.first.T]
    scores = [teacher.beta * sum(a * b for a, b in zip(hidden, column, strict=True)) for column in teacher.second.T]
    return np.exp(scores) / sum(np.exp(scores))


def test_teacher_by_hand():
    log_p, entropy = TEACHER.log_probabilities(X), TEACHER.entropy(X)
    for k in range(5):
        p = law(TEACHER, X[k])
        assert np.exp(log_p[k]) == pytest.approx(p, rel=1e-12)
        assert entropy[k] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-12)
    assert TEACHER.floor(X) == pytest.approx(entropy.mean(), rel=1e-14) and TEACHER.floor(X[None]) == TEACHER.floor(X)
    assert TEACHER.first.shape == (8, 32) and TEACHER.second.shape == (32, 4) and TEACHER.beta == 3


def test_teacher_is_drawn_with_the_stated_deviations():
    big = tasks.Teacher.draw(np.random.default_rng(0), inputs=50, hidden=200, classes=40)
    assert big.first.std() == pytest.approx(50**-0.5, rel=0.03) and big.second.std() == pytest.approx(
        200**-0.5, rel=0.03
    )


def test_floor_is_the_cross_entropy_of_the_teacher_itself():
    """On fresh labels, to within four standard errors."""
    x, labels = TEACHER.sample(20_000, np.random.default_rng(5))
    each = -TEACHER.log_probabilities(x)[np.arange(len(x)), labels]
    assert abs(each.mean() - TEACHER.floor(x)) < 4 * each.std() / np.sqrt(len(x))
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01


def test_labels_follow_p():
    x = np.broadcast_to(X[3], (30_000, 8))
    seen = np.bincount(TEACHER.labels(x, np.random.default_rng(2)), minlength=4) / len(x)
    assert np.abs(seen - law(TEACHER, X[3])).max() < 4 * np.sqrt(0.25 / len(x))
    assert TEACHER.labels(X.reshape(4, 100, 8), np.random.default_rng(0)).shape == (4, 100)


def test_held_out_kl():
    """Zero for the teacher's own logits, ln 4 less the floor for a model that knows nothing, cross-entropy less entropy."""
    logits = torch.randn(3, 400, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    kl = TEACHER.kl(X, logits)
    q = torch.log_softmax(logits.detach(), -1).numpy()
    p = np.exp(TEACHER.log_probabilities(X))
    assert kl.shape == (3, 400) and kl == pytest.approx(-(p * q).sum(-1) - TEACHER.entropy(X), rel=1e-10, abs=1e-12)
    assert (kl > -1e-14).all() and np.abs(TEACHER.kl(X, TEACHER.log_probabilities(X) + 5)).max() < 1e-14
    assert TEACHER.kl(X, np.zeros((1, 400, 4))).mean() == pytest.approx(np.log(4) - TEACHER.floor(X), rel=1e-12)
    assert TEACHER.kl(X, logits.float()) == pytest.approx(kl, abs=1e-5)


def test_a_diverged_model_spoils_no_other():
    logits = np.zeros((3, 400, 4))
    logits[1, 7, 0], logits[2] = np.nan, 1e200
    kl = TEACHER.kl(X, logits).mean(-1)
    assert np.isnan(kl[1]) and kl[0] == kl[2] == pytest.approx(np.log(4) - TEACHER.floor(X))
    logits[0, :, 0] = -800.0  # a certain model that is wrong
    assert 1 < TEACHER.kl(X, logits)[0].mean() < 800


@pytest.mark.parametrize("floor", [1e-3, 0.7685, 1.38])
def test_temperature_is_solved_for_a_floor(floor):
    solved = TEACHER.with_floor(floor, X)
    assert solved.floor(X) == pytest.approx(floor, abs=1e-12)
    assert solved.first is TEACHER.first and (solved.beta > TEACHER.beta) == (floor < TEACHER.floor(X))


@pytest.mark.parametrize("floor", [0.0, -1.0, 1.3863, float("nan")])
def test_a_floor_out_of_range(floor):
    with pytest.raises(ValueError, match=rf"floor = {floor} is not allowed: .* ln\(4\) = 1.3863"):
        TEACHER.with_floor(floor, X)


def test_a_floor_below_tied_scores():
    """An input of zeros has all labels equally likely at any temperature: half of two inputs, half of ln 4."""
    with pytest.raises(ValueError, match="floor = 0.5 is below the mean entropy of tied scores"):
        TEACHER.with_floor(0.5, np.stack([np.zeros(8), X[0]]))


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: tasks.Teacher.draw(np.random.default_rng(0), classes=1),
            "classes = 1 is not allowed: give at least 2",
        ),
        (lambda: tasks.Teacher.draw(np.random.default_rng(0), hidden=0), "hidden = 0 is not allowed"),
        (lambda: tasks.Teacher.draw(np.random.default_rng(0), beta=-1.0), "beta = -1.0 is not allowed"),
        (lambda: tasks.Teacher.draw(np.random.default_rng(0), beta=float("inf")), "beta = inf is not allowed"),
        (lambda: tasks.Teacher(np.ones((3, 2)), np.ones((3, 2)), 1.0), r"first has shape \(3, 2\) and second \(3, 2\)"),
        (lambda: tasks.Teacher(np.ones((3, 2)), np.ones((2, 1)), 1.0), "classes = 1 is not allowed"),
        (lambda: tasks.Teacher(np.full((3, 2), np.nan), np.ones((2, 2)), 1.0), "first holds nan"),
        (lambda: tasks.Teacher(np.ones((3, 2)), np.full((2, 2), np.inf), 1.0), "second holds inf"),
        (lambda: TEACHER.entropy(X[:, :7]), "x has 7 inputs, and the teacher has 8"),
        (lambda: TEACHER.floor(np.where(X > 3, np.nan, X)), "x holds nan: give finite numbers only"),
        (lambda: TEACHER.kl(X, np.zeros((1, 400, 3))), "logits have 3 classes, and the teacher has 4"),
        (lambda: TEACHER.sample(0, np.random.default_rng(0)), "count = 0 is not allowed"),
        (lambda: tasks.generator(-1, "x"), "seed = -1 is not allowed"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Every CPU path

DATA = """
import hashlib, json, numpy as np
from resnorm_lib import tasks
bits = lambda array: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
language = tasks.MarkovSource.draw(8, 0.05, tasks.generator(1, "language"))
slow = tasks.MarkovSource.draw(8, 0.05, np.random.default_rng(72))
teacher = tasks.Teacher.draw(tasks.generator(0, "teacher"))
x, y = teacher.sample(20_000, tasks.generator(1, "data"))
colder = teacher.with_floor(0.7685, x[:500])
z = tasks.generator(2, "canary").standard_normal(1000)
print(json.dumps({
    "exact": [bits(a) for a in (
        tasks.gaussian(range(3), "tokens", 50).numpy(), language.table, language.pairs, slow.pairs,
        language.sample(200, 32, tasks.generator(2, "tokens")), tasks.CopyTask(16).sample(200, 16, tasks.generator(3, "copy")),
        teacher.first, teacher.second, x, y, colder.labels(x, tasks.generator(4, "labels")))],
    "close": [teacher.floor(x), colder.beta, *np.exp(colder.log_probabilities(x[:20])).ravel()],
    "tanh and exp": [bits(np.tanh(z)), bits(np.exp(z))]}))
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="these paths are those of x86 processors")
def test_every_cpu_path_draws_the_same_data():
    """Inputs, tokens and labels to the bit; probabilities to the bit where NumPy's own code path is the same.

    The last path takes NumPy's vector code away, which changes the last bit of tanh and exp (the canary).
    """
    found = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    paths = [
        {},
        {"ATEN_CPU_CAPABILITY": "default"},
        {"MKL_CBWR": "COMPATIBLE"},
        {"NPY_DISABLE_CPU_FEATURES": " ".join(found)},
    ]
    kept = {key: value for key, value in os.environ.items() if key not in {name for path in paths for name in path}}
    runs = [
        subprocess.Popen([sys.executable, "-c", DATA], env=kept | path, stdout=subprocess.PIPE, text=True)
        for path in paths
    ]
    here, *others, plain = [json.loads(run.communicate()[0]) for run in runs]
    assert others == [here, here]
    assert plain["exact"] == here["exact"]
    assert plain["close"] == pytest.approx(here["close"], rel=1e-11)
    if found:
        assert plain["tanh and exp"] != here["tanh and exp"], "NumPy took the same path: nothing was tested"
