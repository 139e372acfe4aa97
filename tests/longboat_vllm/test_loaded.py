"""Tests that loaded bytes are counted before a fake vLLM's kernels drop them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest

from longboat_vllm.process import loaded
from longboat_vllm.shapes import UnexpectedShapeError


@dataclass
class Tensor:
    numbers: int
    width: int = 4

    def numel(self) -> int:
        return self.numbers

    def element_size(self) -> int:
        return self.width


class Model:
    def __init__(self) -> None:
        self.weights = [Tensor(100), Tensor(8, 2)]

    def parameters(self) -> Iterator[Tensor]:
        return iter(self.weights)

    def buffers(self) -> Iterator[Tensor]:
        return iter([Tensor(16)])


def process_weights_after_loading(model: Model, config: str, device: str) -> str:
    model.weights = []
    return config + device


class BaseModelLoader:
    def load_model(self, model: Model) -> str:
        loader = sys.modules["vllm.model_executor.model_loader.base_loader"]
        process_weights_after_loading = loader.process_weights_after_loading
        return str(process_weights_after_loading(model, "config ", "cpu"))


class OtherLoader:
    def load_model(self, model: Model) -> str:
        return "no step"


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(process_weights_after_loading=process_weights_after_loading, BaseModelLoader=BaseModelLoader)
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.model_executor.model_loader"].base_loader = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.model_executor.model_loader.base_loader", made)  # type: ignore[arg-type]
    return made


def test_weights_are_counted_before_they_are_dropped(loader: SimpleNamespace) -> None:
    told: list[str] = []
    loaded.install(told.append)
    model = Model()
    assert BaseModelLoader().load_model(model) == "config cpu"
    assert told == ["weights: 416 bytes in 2 tensors, tables: 64 bytes"]
    assert model.weights == []


def test_installing_again_counts_once(loader: SimpleNamespace) -> None:
    told: list[str] = []
    loaded.install(told.append)
    loaded.install(told.append)
    BaseModelLoader().load_model(Model())
    assert len(told) == 1


def test_a_vllm_that_looks_otherwise_is_left_alone(loader: SimpleNamespace) -> None:
    loader.BaseModelLoader = OtherLoader
    with pytest.raises(UnexpectedShapeError):
        loaded.install(print)
    assert loader.process_weights_after_loading is process_weights_after_loading
