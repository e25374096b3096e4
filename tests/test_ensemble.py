"""Many models trained at once against one model at a time in torch.optim; divergence, interruption, bad input."""

import os
import signal
import threading

import pytest
import torch
from torch import nn

from resnorm_lib import ensemble, models, placements

DEPTHS, MULTIPLIERS = (4, 4, 3, 2), (1.0, 0.5, 1.0, 0.5)
RATES, WARMUPS = (1e-2, 3e-3, 3e-2, 1e-3), (0, 3, 1, 8)
OPTIMISERS = [
    (ensemble.SGD(), torch.optim.SGD, {}),
    (ensemble.SGD(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (ensemble.Adam(), torch.optim.Adam, {}),
    (ensemble.Adam(betas=(0.8, 0.95), eps=1e-2), torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-2}),
]


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C as in a terminal: a command that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products on many threads are slow, and a sum's order depends on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config(depth=2, multiplier=1.0, placement="pre", **changes):
    own = multiplier if "c" not in placements.get(placement).numbers() else 1.0
    sizes = {"inputs": 3, "width": 6, "hidden": 6, "outputs": 4, "activation": "tanh"}
    return models.MLPConfig(**sizes, depth=depth, multiplier=own, placement=placement, **changes)


def mlp(depths=DEPTHS, multipliers=MULTIPLIERS, first_seed=0, **changes):
    configs = [config(d, m, **changes) for d, m in zip(depths, multipliers, strict=True)]
    return models.ResidualMLP(
        configs, [torch.Generator().manual_seed(first_seed + k) for k in range(len(depths))], torch.float64
    )


def transformer(count=3, depth=2, **changes):
    own = models.TransformerConfig(vocabulary=5, length=6, width=8, hidden=8, heads=2, depth=depth, **changes)
    return models.TransformerLM(own, [torch.Generator().manual_seed(k) for k in range(count)], torch.float64)


def points(steps, models_=4, batch=8):
    """Points of four classes that two signs tell apart."""
    source = torch.Generator().manual_seed(99)
    inputs = [torch.randn(models_, batch, 3, generator=source, dtype=torch.float64) for _ in range(steps)]
    return [(x, 2 * (x[..., 0] > 0) + (x[..., 1] > 0)) for x in inputs]


def sentences(steps, models_=3):
    source = torch.Generator().manual_seed(98)
    pairs = [torch.randint(5, (models_, 4, 7), generator=source) for _ in range(steps)]
    return [(tokens[..., :-1], tokens[..., 1:]) for tokens in pairs]


def alone(model, which, batches, peer, options, rate, warmup):
    """One model in a plain loop in torch.optim, on rows of the batched model's parameters; losses and end parameters."""
    single, start = build_one(model, which), dict(model.named_parameters())
    factors = model.rates("adam" if peer is torch.optim.Adam else "sgd")
    groups = []
    for name, parameter in single.named_parameters():
        parameter.data.copy_(start[name][which : which + 1])
        scaled_rate, scaled_eps = (float(factor[which]) for factor in factors[name])
        group = {"params": [parameter], "rate": rate * scaled_rate}
        groups.append(group | ({"eps": options.get("eps", 1e-8) * scaled_eps} if peer is torch.optim.Adam else {}))
    optimiser, losses = peer(groups, lr=1.0, **options), []
    for step, (inputs, targets) in enumerate(batches):
        for group in optimiser.param_groups:
            group["lr"] = group["rate"] * min(1, (step + 1) / warmup if warmup else 1)
        optimiser.zero_grad()
        logits = single(inputs[which : which + 1])
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), targets[which].flatten())
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses, dict(single.named_parameters())


def build_one(model, which):
    kind = models.ResidualMLP if isinstance(model, models.ResidualMLP) else models.TransformerLM
    return kind([model.configs[which]], [torch.Generator()], torch.float64)


def compare(model, batches, optimiser, peer, options, rates, warmups, tolerance):
    """Train all at once, and each alone; every loss and every parameter agrees."""
    expected = [
        alone(model, which, batches, peer, options, rate, warmup)
        for which, (rate, warmup) in enumerate(zip(rates, warmups, strict=True))
    ]
    history = ensemble.train(
        model, batches, ensemble.cross_entropy, optimiser=optimiser, learning_rates=rates, warmups=warmups
    )
    assert history.diverged == (None,) * len(rates)
    assert not history.interrupted
    for which, (losses, parameters) in enumerate(expected):
        assert history.losses[:, which].tolist() == pytest.approx(losses, rel=0, abs=tolerance)
        for name, parameter in model.named_parameters():
            if which < len(parameter):
                difference = (parameter[which] - parameters[name][0]).abs().max().item()
                assert difference <= tolerance, (name, which, difference)


@pytest.mark.parametrize("placement", placements.PLACEMENTS)
def test_five_steps_of_adam_are_those_of_torch_for_every_placement(placement):
    compare(mlp(placement=placement), points(5), *OPTIMISERS[2], RATES, WARMUPS, 1e-10)


@pytest.mark.parametrize("optimiser, peer, options", OPTIMISERS)
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_five_steps_of_every_optimiser_are_those_of_torch(optimiser, peer, options, placement):
    compare(mlp(placement=placement), points(5), optimiser, peer, options, RATES, WARMUPS, 1e-12)


@pytest.mark.parametrize("placement", placements.PLACEMENTS)
def test_five_steps_of_a_transformer_are_those_of_torch(placement):
    model = transformer(placement=placement)
    compare(model, sentences(5), *OPTIMISERS[2], (1e-2, 1e-3, 3e-3), (0, 2, 8), 1e-10)


@pytest.mark.parametrize("optimiser, peer, options", OPTIMISERS[1:3])
def test_stable_models_agree_to_the_end(optimiser, peer, options):
    """Small multipliers and rates keep rounding errors from growing over 150 steps."""
    model = mlp(multipliers=(0.5, 0.25, 0.5, 0.25))
    compare(model, points(150), optimiser, peer, options, (1e-2, 3e-3, 3e-3, 1e-3), WARMUPS, 1e-10)


@pytest.mark.parametrize("scheme", ["depth_mup", "completep"])
def test_a_placement_that_rescales_the_optimiser_does_so(scheme):
    """ε is so large that its factor shows; the factors are read from the model."""
    peer = {"betas": (0.9, 0.999), "eps": 0.1}
    model = mlp(placement=scheme)
    assert any((factor != 1).any() for pair in model.rates("adam").values() for factor in pair)
    compare(model, points(5), ensemble.Adam(eps=0.1), torch.optim.Adam, peer, RATES, WARMUPS, 1e-12)


def test_one_model_is_the_case_of_one():
    compare(mlp((3,), (1.0,)), points(5, 1), *OPTIMISERS[2], (1e-2,), (2,), 1e-12)


class Ragged(nn.Module):
    """Any module that follows the rule will do: here the second product exists for the first two of three models."""

    def __init__(self):
        super().__init__()
        source = torch.Generator().manual_seed(7)
        self.first = nn.Parameter(torch.randn(3, 3, 4, generator=source, dtype=torch.float64))
        self.second = nn.Parameter(torch.randn(2, 4, 4, generator=source, dtype=torch.float64))
        self.offset = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        x = x @ self.first
        return torch.cat([torch.tanh(x[:2]) @ self.second, x[2:]]) * (1 + self.offset[:, None, None])


@pytest.mark.parametrize("optimiser, peer, options", OPTIMISERS[1:3])
def test_any_module_with_the_model_axis_first(optimiser, peer, options):
    model, single, batches = Ragged(), Ragged(), points(5, 3)
    call = {"loss": ensemble.cross_entropy, "learning_rates": RATES[:3], "warmups": WARMUPS[:3]}
    history = ensemble.train(model, batches, optimiser=optimiser, **call)
    for which in range(3):
        peers, losses = peer(single.parameters(), lr=1.0, **options), []
        start = {name: value.clone() for name, value in Ragged().state_dict().items()}
        single.load_state_dict(start)
        for step, (inputs, targets) in enumerate(batches):
            peers.param_groups[0]["lr"] = RATES[which] * min(1, (step + 1) / max(1, WARMUPS[which]))
            peers.zero_grad()
            loss = ensemble.cross_entropy(single(inputs), targets)[which]
            loss.backward()
            peers.step()
            losses.append(loss.item())
        assert history.losses[:, which].tolist() == pytest.approx(losses, rel=0, abs=1e-12)
        for own, other in zip(model.parameters(), single.parameters(), strict=True):
            assert which >= len(own) or torch.allclose(own[which], other[which], rtol=0, atol=1e-12)


def test_no_gradient_is_clipped():
    large, small = mlp(), mlp()
    call = {"optimiser": ensemble.SGD(), "batches": points(2)}
    ensemble.train(large, loss=lambda o, t: 1e20 * ensemble.cross_entropy(o, t), learning_rates=[1e-22] * 4, **call)
    ensemble.train(small, loss=ensemble.cross_entropy, learning_rates=[1e-2] * 4, **call)
    assert not torch.equal(small.weights["head"], mlp().weights["head"])
    for a, b in zip(large.parameters(), small.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-13)


def test_a_model_does_not_depend_on_its_companions():
    together, one = mlp(), mlp(DEPTHS[2:3], MULTIPLIERS[2:3], first_seed=2)
    batches = points(20)
    options = {"loss": ensemble.cross_entropy, "optimiser": ensemble.Adam()}
    both = ensemble.train(together, batches, learning_rates=RATES, **options)
    single = [(inputs[2:3], targets[2:3]) for inputs, targets in batches]
    assert ensemble.train(one, single, learning_rates=RATES[2:3], **options).losses[:, 0].tolist() == pytest.approx(
        both.losses[:, 2].tolist(), rel=0, abs=1e-12
    )


def test_a_model_that_diverges_is_reported_and_spoils_no_other():
    """Without a norm a huge rate overflows; the others are as if it had not been there, and it stays in its place."""
    batches = points(12)
    call = {"loss": ensemble.cross_entropy, "optimiser": ensemble.SGD()}
    sound, mixed = mlp(placement="residual"), mlp(placement="residual")
    calm = ensemble.train(sound, batches, learning_rates=(0.1, 0.1, 0.1, 0.1), **call)
    wild = ensemble.train(mixed, batches, learning_rates=(0.1, 1e200, 0.1, 0.1), **call)
    assert calm.diverged == (None,) * 4
    assert wild.losses.shape == (12, 4)
    step = wild.diverged[1]
    assert wild.diverged == (None, step, None, None)
    assert wild.losses[:step, 1].isfinite().all() and not wild.losses[step, 1].isfinite()
    others = [0, 2, 3]
    assert torch.equal(calm.losses[:, others], wild.losses[:, others])
    for a, b in zip(sound.parameters(), mixed.parameters(), strict=True):
        rows = [k for k in others if k < len(a)]
        assert torch.equal(a[rows], b[rows])


def test_divergence_in_the_last_update_shows_in_the_parameters():
    history = ensemble.train(
        mlp(),
        points(1),
        lambda outputs, targets: 1e10 * ensemble.cross_entropy(outputs, targets),
        optimiser=ensemble.SGD(),
        learning_rates=(0.1, 1e308, 0.1, 0.1),
    )
    assert history.losses.isfinite().all()
    assert history.diverged == (None, 1, None, None)


def test_a_run_of_no_batches():
    model = mlp()
    call = {"loss": ensemble.cross_entropy, "optimiser": ensemble.SGD(), "learning_rates": RATES}
    with torch.no_grad():
        model.weights["stem"][2, 0, 0] = torch.inf
    history = ensemble.train(model, [], **call)
    assert history.losses.shape == (0, 4)
    assert history.diverged == (None, None, 0, None)


def test_ctrl_c_ends_the_run_between_two_updates():
    """What was done until then is returned, and is what a run of that many batches does."""
    stopped, whole = mlp(), mlp()
    call = {"loss": ensemble.cross_entropy, "optimiser": ensemble.Adam(), "learning_rates": RATES}

    def batches():
        for step, batch in enumerate(points(10)):
            if step == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch

    before = signal.getsignal(signal.SIGINT)
    history = ensemble.train(stopped, batches(), **call)
    assert signal.getsignal(signal.SIGINT) is before
    assert history.interrupted
    assert torch.equal(history.losses, ensemble.train(whole, points(4), **call).losses)
    for a, b in zip(stopped.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_second_ctrl_c_interrupts_at_once_and_leaves_the_model_whole():
    model = mlp()
    own = [parameter.data_ptr() for parameter in model.parameters()]

    def batches():
        for step, batch in enumerate(points(10)):
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            yield batch

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        ensemble.train(model, batches(), ensemble.cross_entropy, optimiser=ensemble.Adam(), learning_rates=RATES)
    assert signal.getsignal(signal.SIGINT) is before
    assert [parameter.data_ptr() for parameter in model.parameters()] == own
    assert not torch.equal(next(mlp().parameters()), next(model.parameters()))


def test_progress_is_told_and_nothing_is_printed(capfd):
    seen = []
    call = {"loss": ensemble.cross_entropy, "optimiser": ensemble.Adam(), "learning_rates": RATES}
    ensemble.train(mlp(), points(3), progress=seen.append, **call)
    ensemble.train(mlp(), points(3), **call)
    assert seen == [1, 2, 3]
    assert capfd.readouterr() == ("", "")


def test_the_model_keeps_its_storage_and_no_gradient():
    model = mlp()
    own = [parameter.data_ptr() for parameter in model.parameters()]
    view = model.weights["stem"].data[0]
    with torch.no_grad():  # train turns gradients on for itself
        ensemble.train(model, points(2), ensemble.cross_entropy, optimiser=ensemble.Adam(), learning_rates=RATES)
    assert [parameter.data_ptr() for parameter in model.parameters()] == own
    assert torch.equal(view, model.weights["stem"][0])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_frozen_parameter_stays_and_an_unused_one_too():
    model = mlp()
    model.weights["stem"].requires_grad_(False)
    model.extra = nn.Parameter(torch.ones(4, 1, dtype=torch.float64))
    ensemble.train(model, points(3), ensemble.cross_entropy, optimiser=ensemble.Adam(), learning_rates=RATES)
    assert torch.equal(model.weights["stem"], mlp().weights["stem"])
    assert torch.equal(model.extra, torch.ones(4, 1))
    assert not torch.equal(model.weights["head"], mlp().weights["head"])


def test_cross_entropy_is_each_models_own_mean():
    source = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 3, 5, 7, generator=source, dtype=torch.float64)
    targets = torch.randint(7, (2, 3, 5), generator=source)
    for k, value in enumerate(ensemble.cross_entropy(logits, targets)):
        probabilities = logits[k].exp() / logits[k].exp().sum(-1, keepdim=True)
        own = -probabilities.gather(-1, targets[k][..., None]).log().mean()
        assert value.item() == pytest.approx(own.item(), rel=1e-13)


def groups(steps=6):
    call = (points(steps), ensemble.cross_entropy, ensemble.Adam(), RATES, WARMUPS)
    return [ensemble.Run(mlp(placement=placement), *call) for placement in ("pre", "post", "residual")]


@pytest.mark.parametrize("workers", [1, 2])
def test_groups_are_trained_as_alone(workers):
    seen, runs = [], groups()
    together = ensemble.train_groups(runs, workers=workers, progress=seen.append)
    assert seen == list(range(1, 19))
    for run, history in zip(groups(), together, strict=True):
        own = ensemble.train(
            run.model, run.batches, run.loss, optimiser=run.optimiser, learning_rates=RATES, warmups=WARMUPS
        )
        assert torch.equal(own.losses, history.losses)


def test_ctrl_c_ends_all_groups():
    runs, ready = groups(10_000), threading.Event()

    def progress(done):
        if done > 5 and not ready.is_set():
            ready.set()
            os.kill(os.getpid(), signal.SIGINT)

    histories = ensemble.train_groups(runs, progress=progress)
    assert [history.interrupted for history in histories] == [True] * 3
    assert sum(len(history.losses) for history in histories) < 10_000


def test_an_error_in_one_group_is_told():
    runs = groups(10_000)
    runs[1] = ensemble.Run(runs[1].model, points(3, 2), *list(vars(runs[1]).values())[2:])
    seen = []
    with pytest.raises(ValueError, match="inputs of batch 0"):
        ensemble.train_groups(runs, progress=seen.append)
    assert len(seen) < 10_000  # the other two do not go on to their ends


def spoilt(which, batches=None):
    batches = points(3) if batches is None else batches
    batches[2][0][which, 1, 0] = torch.nan
    return batches


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"learning_rates": (0.1, 0.1)}, "learning_rates has 2 entries for 4 models"),
        ({"learning_rates": (0.1, -0.1, 0.1, 0.1)}, r"learning_rates\[1\] = -0.1 is not allowed"),
        ({"learning_rates": (0.1, 0.1, 0.1, float("nan"))}, r"learning_rates\[3\] = nan is not allowed"),
        ({"warmups": (1,)}, "warmups has 1 entries for 4 models"),
        ({"warmups": (1, 1, -2, 1)}, r"warmups\[2\] = -2 is not allowed"),
        ({"batches": points(1, 3)}, r"inputs of batch 0 have shape \(3, 8, 3\).*4 models"),
        ({"batches": [(points(1)[0][0], torch.tensor(1))]}, r"targets of batch 0 have shape \(\)"),
        ({"batches": spoilt(2)}, "inputs of batch 2 are NaN or infinite for model 2"),
        (
            {"loss": lambda outputs, targets: outputs.sum()},
            r"loss has shape \(\): give one number for each of 4 models",
        ),
    ],
)
def test_bad_input(changes, message):
    call = {"batches": points(3), "loss": ensemble.cross_entropy, "optimiser": ensemble.Adam(), "learning_rates": RATES}
    with pytest.raises(ValueError, match=message):
        ensemble.train(mlp(), **(call | changes))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ensemble.SGD(momentum=1.0), "momentum = 1.0 is not allowed"),
        (lambda: ensemble.Adam(betas=(0.9, 1.0)), r"betas\[1\] = 1.0 is not allowed"),
        (lambda: ensemble.Adam(betas=(-0.1, 0.9)), r"betas\[0\] = -0.1 is not allowed"),
        (lambda: ensemble.Adam(eps=-1e-8), "eps = -1e-08 is not allowed"),
        (lambda: ensemble.train_groups([], workers=0), "workers = 0 is not allowed"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Plain(nn.Module):
    def __init__(self, **parameters):
        super().__init__()
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value))


@pytest.mark.parametrize(
    "model, message",
    [
        (Plain(), "no parameter that requires a gradient"),
        (Plain(scale=torch.tensor(1.0)), r"parameter scale has shape \(\)"),
        (Plain(a=torch.ones(2, 2), b=torch.ones(2, 2).double()), "torch.float32 and torch.float64: convert"),
    ],
)
def test_bad_model(model, message):
    with pytest.raises(ValueError, match=message):
        ensemble.train(model, [], ensemble.cross_entropy, optimiser=ensemble.SGD(), learning_rates=(1.0, 1.0))
