"""Train many models at once: each has its own learning rate and warmup, and none is touched by its companions.

The models are one module with a leading model axis: every parameter has shape ``(n, ...)`` with n at most the number
of models, and row i belongs to model i. One model is the case of one; there is no second code path.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from resnorm_lib.stack import Stack

__all__ = ["SGD", "Adam", "History", "Run", "cross_entropy", "train", "train_groups"]

Loss = Callable[[Tensor, Tensor], Tensor]
Batches = Iterable[tuple[Tensor, Tensor]]
Progress = Callable[[int], None]
Update = Callable[[Tensor, Tensor, Tensor], None]  # of parameters, in place, from gradient and rates, all of one shape


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: b ← μ b + g, θ ← θ - η b, as ``torch.optim.SGD`` without dampening.

    Attributes:
        momentum: μ, at least 0 and below 1.

    Raises:
        ValueError: a momentum outside [0, 1).
    """

    momentum: float = 0.0
    name: ClassVar[str] = "sgd"

    def __post_init__(self) -> None:
        """Refuse what torch refuses, and what does not converge."""
        _within_unit("momentum", self.momentum)

    def start(self, like: Tensor, eps_factor: Tensor | None = None) -> Update:
        """The update, with its buffer b = 0 of the shape of ``like``; there is no ε for the factor to change."""
        velocity = torch.zeros_like(like) if self.momentum else None

        def update(parameters: Tensor, gradient: Tensor, rates: Tensor) -> None:
            if velocity is not None:
                gradient = velocity.mul_(self.momentum).add_(gradient)
            parameters.addcmul_(gradient, rates, value=-1)

        return update


@dataclass(frozen=True)
class Adam:
    """Adam: m ← β₁ m + (1 - β₁) g, v ← β₂ v + (1 - β₂) g², θ ← θ - η m̂/(√v̂ + ε), as ``torch.optim.Adam``.

    m̂ = m/(1 - β₁ᵗ) and v̂ = v/(1 - β₂ᵗ) at step t = 1, 2, …; ε stands outside the root.

    Attributes:
        betas: β₁ and β₂, each at least 0 and below 1.
        eps: ε, not negative.

    Raises:
        ValueError: a value outside these ranges.

    Source: Kingma and Ba 2014 (arXiv 1412.6980).
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    name: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        """Refuse what torch refuses."""
        for name, beta in zip(("betas[0]", "betas[1]"), self.betas, strict=True):
            _within_unit(name, beta)
        if not 0 <= self.eps < math.inf:
            raise ValueError(f"eps = {self.eps} is not allowed: give zero or a small positive number")

    def start(self, like: Tensor, eps_factor: Tensor | None = None) -> Update:
        """The update, with its buffers m = v = 0 of the shape of ``like``, at step t = 0; ε times its factor."""
        mean, square, ratio = torch.zeros_like(like), torch.zeros_like(like), torch.empty_like(like)
        beta1, beta2 = self.betas
        eps = self.eps if eps_factor is None else self.eps * eps_factor
        step = 0

        def update(parameters: Tensor, gradient: Tensor, rates: Tensor) -> None:
            nonlocal step
            step += 1
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            # m̂/(√v̂ + ε) = (root/(1 - β₁ᵗ)) m/(√v + root ε) with root = √(1 - β₂ᵗ): two passes over memory fewer.
            root = math.sqrt(1 - beta2**step)
            torch.sqrt(square, out=ratio).add_(eps, alpha=root)
            torch.div(mean, ratio, out=ratio)
            parameters.addcmul_(ratio, rates, value=-root / (1 - beta1**step))

        return update


@dataclass(frozen=True)
class History:
    """What a training run did.

    Attributes:
        losses: ``(steps, models)``, the loss of each model before each update, in the loss's own dtype.
        diverged: for each model the number of updates after which its loss, or at the end a parameter, was first
            not finite; ``None`` where that never happened. A diverged model stays in its place.
        interrupted: whether Ctrl-C ended the run before its data did.
    """

    losses: Tensor
    diverged: tuple[int | None, ...]
    interrupted: bool


@dataclass(frozen=True)
class Run:
    """The arguments of `train`, for `train_groups`; see there.

    Attributes:
        model, batches, loss, optimiser, learning_rates, warmups: as in `train`.
    """

    model: nn.Module
    batches: Batches
    loss: Loss
    optimiser: SGD | Adam
    learning_rates: Sequence[float]
    warmups: Sequence[int] | None = None


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over a model's data of -ln softmax(logits)[target].

    Shapes: ``(models, ..., classes)`` and integer ``(models, ...)`` to ``(models,)``, in the dtype of ``logits``.
    """
    each = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


def train(
    model: nn.Module,
    batches: Batches,
    loss: Loss,
    *,
    optimiser: SGD | Adam,
    learning_rates: Sequence[float],
    warmups: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> History:
    """Train every model of a module in place, one update for each batch.

    Model i minimises its own loss with learning rate η_i min(1, t/w_i) at step t = 1, 2, …, with w_i its warmup.
    Since the sum of the losses is what is differentiated, and no parameter belongs to two models, each
    model moves as it would alone. Where the module is a ``Stack`` whose placement rescales learning rates or ε
    (`Stack.rates`), that is done here. Ctrl-C ends the run after the update it falls in; a second one interrupts at once.

    Args:
        model: maps inputs ``(models, ...)`` to outputs ``(models, ...)``; each parameter that wants a gradient has
            shape ``(n, ...)``, n ≤ models, all of one floating dtype, which is that of the arithmetic.
        batches: pairs of inputs and targets, each ``(models, ...)``; read one by one until they end.
        loss: outputs and targets to ``(models,)``.
        optimiser: `SGD` or `Adam`.
        learning_rates: η, one for each model; not negative.
        warmups: w in steps, one for each model; ``None`` for no warmup, as are 0 and 1.
        progress: called with the number of updates done after each one; for commands, never for notebooks.

    Raises:
        ValueError: rates or warmups that are too many, too few, negative or not finite; a parameter, batch or loss
            without the model axis; data that are NaN or infinite.
    """
    run = Run(model, batches, loss, optimiser, learning_rates, warmups)
    with _interruption() as stop:
        return _train(run, stop, progress)


def train_groups(runs: Sequence[Run], workers: int = 2, progress: Progress | None = None) -> list[History]:
    """Train modules that cannot share one batch, as those of two placements, each in a thread of its own.

    Torch lets go of Python's lock while it computes, so that several cores are busy where each thread has one torch
    thread (``torch.set_num_threads(1)``); ``benchmarks/ensemble.py`` measures how much time that saves. The results do
    not depend on the number of workers.

    Args:
        runs: the modules and what each is trained on.
        workers: how many are trained at a time, at least 1.
        progress: called with the number of updates done by all modules together, from any of the threads.

    Raises:
        ValueError: as `train`, or ``workers`` below 1.
    """
    if workers < 1:
        raise ValueError(f"workers = {workers} is not allowed: give at least 1")
    lock, done = threading.Lock(), 0

    def report(_: int) -> None:
        nonlocal done
        with lock:
            done += 1
            if progress is not None:
                progress(done)

    def guarded(run: Run) -> History:
        try:
            return _train(run, stop, report)
        except BaseException:
            stop.set()  # the others end soon, and the error is told
            raise

    with _interruption() as stop, ThreadPoolExecutor(workers) as pool:
        return list(pool.map(guarded, runs))


@torch.enable_grad()
def _train(run: Run, stop: threading.Event, progress: Progress | None) -> History:
    named = _parameters(run.model)
    parameters = list(named.values())
    models = max(len(parameter) for parameter in parameters)
    rates, warmups = _schedule(run, models)
    factors = run.model.rates(run.optimiser.name) if isinstance(run.model, Stack) else {}
    losses: list[Tensor] = []
    with _flat(parameters) as flat:
        ones = torch.ones(models, dtype=torch.float64), torch.ones(models, dtype=torch.float64)
        of_rate, of_eps = zip(*(factors.get(name, ones) for name in named), strict=True)
        scaled = any((factor != 1).any() for factor in of_eps)
        update = run.optimiser.start(flat, _spread(of_eps, parameters) if scaled else None)
        gradient = torch.empty_like(flat)
        for inputs, targets in run.batches:
            step = len(losses)
            _check_data(inputs, f"inputs of batch {step}", models)
            _check_data(targets, f"targets of batch {step}", models)
            values = run.loss(run.model(inputs), targets)
            if values.shape != (models,):
                raise ValueError(f"loss has shape {tuple(values.shape)}: give one number for each of {models} models")
            slopes = torch.autograd.grad(values.sum(), parameters, materialize_grads=True)
            torch.cat([slope.reshape(-1) for slope in slopes], out=gradient)
            if step == 0 or step < warmups.max():
                warm = rates * ((step + 1) / warmups).clamp(max=1)
                current = _spread([factor * warm[: len(factor)] for factor in of_rate], parameters)
            update(flat, gradient, current)
            losses.append(values.detach())
            if progress is not None:
                progress(len(losses))
            if stop.is_set():
                break
    history = torch.stack(losses) if losses else torch.empty(0, models, dtype=parameters[0].dtype)
    return History(history, _diverged(history, parameters), stop.is_set())


@contextmanager
def _flat(parameters: Sequence[Tensor]) -> Iterator[Tensor]:
    """All parameters as one vector, which an update passes over few times; each is a view of it meanwhile."""
    own = [parameter.data for parameter in parameters]
    flat = torch.cat([data.reshape(-1) for data in own])
    for parameter, part in zip(parameters, flat.split_with_sizes([data.numel() for data in own]), strict=True):
        parameter.data = part.view_as(parameter)
    try:
        yield flat
    finally:
        for parameter, data in zip(parameters, own, strict=True):
            parameter.data = data.copy_(parameter.data)


def _spread(numbers: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """For each parameter a number for each model ``(n,)`` or more; the vector that gives each element its model's."""
    rows = zip(numbers, parameters, strict=True)
    return torch.cat([row[: len(p), None].to(p.dtype).expand(-1, p[0].numel()).reshape(-1) for row, p in rows])


@contextmanager
def _interruption() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that it cuts no update in two; a second Ctrl-C does what it did before."""
    stop, before = threading.Event(), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield stop  # only the main thread is told of signals; and a command may ignore them
        return

    def note(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _diverged(losses: Tensor, parameters: Sequence[Tensor]) -> tuple[int | None, ...]:
    after = torch.ones(losses.shape[1], dtype=torch.bool)
    for parameter in parameters:
        after[: len(parameter)] &= parameter.detach().isfinite().reshape(len(parameter), -1).all(1)
    bad = ~torch.cat([losses.isfinite(), after[None]])
    first = torch.where(bad.any(0), bad.int().argmax(0), -1)
    return tuple(None if step < 0 else step for step in first.tolist())


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not found:
        raise ValueError("model has no parameter that requires a gradient: there is nothing to train")
    dtypes = sorted({str(parameter.dtype) for parameter in found.values()})
    if len(dtypes) > 1:
        raise ValueError(f"parameters have dtypes {' and '.join(dtypes)}: convert the model to one of them")
    for name, parameter in found.items():
        if not parameter.dim():
            raise ValueError(f"parameter {name} has shape {tuple(parameter.shape)}: give (n, ...), row i for model i")
    return dict(found)


def _schedule(run: Run, models: int) -> tuple[Tensor, Tensor]:
    """Learning rate and warmup of each model, checked; a warmup of at least one step."""
    warmups = [0] * models if run.warmups is None else run.warmups
    for name, values in (("learning_rates", run.learning_rates), ("warmups", warmups)):
        if len(values) != models:
            raise ValueError(f"{name} has {len(values)} entries for {models} models: give one for each")
        for index, value in enumerate(values):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}[{index}] = {value} is not allowed: give zero or a positive number")
    rates = torch.tensor([float(rate) for rate in run.learning_rates], dtype=torch.float64)
    return rates, torch.tensor([max(1, int(steps)) for steps in warmups], dtype=torch.float64)


def _check_data(data: Tensor, what: str, models: int) -> None:
    if not data.dim() or len(data) != models:
        raise ValueError(f"{what} have shape {tuple(data.shape)}: the first axis must be that of the {models} models")
    if data.is_floating_point() and not data.isfinite().all():
        bad = [str(index) for index, row in enumerate(data) if not row.isfinite().all()]
        raise ValueError(f"{what} are NaN or infinite for model {', '.join(bad)}: give finite numbers")


def _within_unit(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} = {value} is not allowed: give at least 0 and less than 1")
