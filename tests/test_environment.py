"""A kernel whose packages were replaced is stopped; threads are set."""

from importlib import metadata

import pytest
import torch

from resnorm_lib import environment


def test_threads_are_set():
    before = torch.get_num_threads()
    try:
        environment.prepare(threads=2)
        assert torch.get_num_threads() == 2
        environment.prepare()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_replaced_package(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.1")
    with pytest.raises(environment.EnvironmentMismatch, match="numpy .* is loaded but 0.1 is installed: restart the kernel"):
        environment.prepare()


def test_build_is_no_other_version(monkeypatch):
    monkeypatch.setattr(torch, "__version__", metadata.version("torch").split("+")[0] + "+cu128")
    environment.prepare()


def test_no_thread():
    with pytest.raises(ValueError, match="threads = 0"):
        environment.prepare(threads=0)
