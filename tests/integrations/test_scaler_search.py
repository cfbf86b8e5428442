"""The loss scaler of a training loop is found in its own thread, before the first forward pass, and nothing is kept."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref

import pytest
import torch
from torch import nn

from gradwire.compress.codec_cache import CodecCache
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.integrations.scaler_search import ScalerSearch, find_scaler
from gradwire.runtime.loss_scaling import LossScaling


def test_the_only_enabled_scaler_that_the_training_loop_reaches_is_found() -> None:
    assert find_scaler() is None
    scaler, idle = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    assert not idle.is_enabled()
    assert find_scaler() is scaler
    another = torch.amp.GradScaler("cpu")
    with pytest.warns(UserWarning, match="2 loss scalers"):
        assert find_scaler() is None
    assert another.is_enabled()


class Trainer:
    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu")

    def train(self, found: list[object]) -> None:
        found.append(find_scaler())


def test_a_scaler_is_found_in_a_trainers_attributes_in_whatever_thread_it_trains() -> None:
    trainer = Trainer()
    found: list[object] = []
    thread = threading.Thread(target=trainer.train, args=(found,))
    thread.start()
    thread.join(30)
    assert found == [trainer.scaler]


def test_the_variables_of_another_thread_are_not_read() -> None:
    """CPython may follow the frames of a running thread without end, while it holds the GIL: the process hangs."""
    scaler = torch.amp.GradScaler("cpu")
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(find_scaler()))
    thread.start()
    thread.join(30)
    assert scaler.is_enabled()
    # The lambda's own variables hold `found`, not `scaler`.
    assert found == [None]


def test_the_search_keeps_nothing_alive_and_changes_no_variables() -> None:
    class Model:
        pass

    model, kept = Model(), [1, 2]
    gone = weakref.ref(model)
    find_scaler()
    assert isinstance(model, Model)
    del model
    gc.collect()
    assert gone() is None
    assert kept == [1, 2]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals() is a copy since Python 3.13")
def test_a_dictionary_that_the_function_took_of_its_variables_is_not_emptied() -> None:
    rate, steps = 0.1, 3
    settings = locals()
    find_scaler()
    assert settings["rate"] == rate
    assert settings["steps"] == steps


def searched() -> tuple[nn.Module, LossScaling]:
    model, scaling = nn.Linear(2, 2), LossScaling(ErrorFeedback(0, 2), CodecCache())
    ScalerSearch(model, scaling)
    return model, scaling


def test_the_search_waits_for_the_first_forward_pass_in_training_and_runs_once() -> None:
    model, scaling = searched()
    with torch.no_grad():
        model(torch.zeros(2))
    model.eval()
    model(torch.zeros(2))
    model.train()
    scaler = torch.amp.GradScaler("cpu")
    assert scaling.found is None
    model(torch.zeros(2))
    assert scaling.found is scaler
    assert not model._forward_pre_hooks


def test_a_copy_of_the_model_searches_nothing() -> None:
    model, scaling = searched()
    scaler = torch.amp.GradScaler("cpu")
    copy.deepcopy(model)(torch.zeros(2))
    assert scaler.is_enabled()
    assert scaling.found is None
    assert len(model._forward_pre_hooks) == 1
