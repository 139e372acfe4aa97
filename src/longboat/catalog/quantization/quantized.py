"""Applies a quantization to a shape: which weights it changes, and the bits that each takes then."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import translate
from functools import lru_cache

from longboat.catalog.quantization.rules import Form, Quantization
from longboat.catalog.shape.model_shape import Layer, ModelShape, share_equal_layers
from longboat.catalog.shape.weight import Part, Weight

__all__ = ("quantize",)

QUANTIZABLE: tuple[Part, ...] = ("attention", "mlp", "experts", "shared_experts", "mixer")
# Publishers spell the same module names in different ways.
PREFIXES = ("model.language_model.", "language_model.model.", "model.", "backbone.", "language_model.")
SPELLINGS = (
    (".block_sparse_moe.", ".mlp."),
    (".feed_forward.", ".mlp."),
    (".ffn.", ".mlp."),
    (".shared_expert.", ".shared_experts."),
    (".shared_mlp.", ".shared_experts."),
)


def quantize(shape: ModelShape, quantization: Quantization, *, prefix: str = "model.") -> ModelShape:
    """Return the same shape as the files store it.

    prefix: text before ``layers.0`` in the files' names; patterns are tried with and without it
    """
    chooser = _Chooser(quantization, prefix)
    layers = _alike(shape.layers, chooser) if chooser.same_everywhere else _each(shape.layers, chooser)
    others = tuple(_other(weight, len(layers), chooser) for weight in shape.others)
    return replace(
        shape,
        layers=share_equal_layers(layers),
        embedding=chooser.end(shape.embedding, "embed_tokens"),
        head=chooser.end(shape.head, "lm_head"),
        others=others,
    )


def _each(layers: Sequence[Layer], chooser: _Chooser) -> list[Layer]:
    return [_layer(layer, index, chooser) for index, layer in enumerate(layers)]


def _alike(layers: Sequence[Layer], chooser: _Chooser) -> list[Layer]:
    """Quantize each sort of layers once: which weights are stored how does not depend on the layer's number."""
    known: dict[int, Layer] = {}
    for index, layer in enumerate(layers):
        if id(layer) not in known:
            known[id(layer)] = _layer(layer, index, chooser)
    return [known[id(layer)] for layer in layers]


def _layer(layer: Layer, index: int, chooser: _Chooser) -> Layer:
    stored = [chooser.stored(weight, f"layers.{index}.{weight.name}") for weight in layer.weights]
    uncut = {weight.part for weight in stored if _ends_within_a_group(weight)}
    pairs = zip(layer.weights, stored, strict=True)
    return replace(layer, weights=tuple(old if old.part in uncut else new for old, new in pairs))


def _ends_within_a_group(weight: Weight) -> bool:
    """Return whether the last group would be cut off.

    Quantizers leave such a network as it is. Blocks are padded instead.
    """
    return bool(weight.group) and not weight.row_group and weight.columns % weight.group != 0


def _other(weight: Weight, num_layers: int, chooser: _Chooser) -> Weight:
    """Quantize a weight of no layer. Prediction heads are named as layers after the last one in most files."""
    if weight.part != "mtp" or weight.columns == 1 or weight.name.endswith(("embed_tokens", "shared_head", "gate")):
        return weight
    _, module, name = weight.name.split(".", 2)
    return chooser.stored(weight, f"layers.{num_layers + int(module)}.{name}", f"mtp.{name}", force=True)


class _Chooser:
    """The choice of the form in which the weight of a given path is stored."""

    def __init__(self, quantization: Quantization, prefix: str) -> None:
        self.quantization = quantization
        self.excluded = Patterns(quantization.excluded, prefix)
        self.rules = [(Patterns(rule.patterns, prefix), rule.form) for rule in quantization.rules]

    @property
    def same_everywhere(self) -> bool:
        """Whether no pattern names weights."""
        return not self.excluded and not any(patterns for patterns, _ in self.rules)

    def stored(self, weight: Weight, *paths: str, force: bool = False) -> Weight:
        if not force and not self.concerns(weight):
            return weight
        if self.excluded.match(paths):
            return weight
        form = next((form for patterns, form in self.rules if not patterns or patterns.match(paths)), None)
        return weight if form is None else in_form(weight, form)

    def concerns(self, weight: Weight) -> bool:
        if weight.columns <= 1:
            return False
        return weight.part == "experts" if self.quantization.experts_only else weight.part in QUANTIZABLE

    def end(self, weight: Weight | None, path: str) -> Weight | None:
        """Return embedding or head as stored: quantized where a rule names it, or where the method takes all."""
        if weight is None:
            return None
        for patterns, form in self.rules:
            if (patterns and patterns.match((path,))) or (self.quantization.ends and not patterns):
                return weight if self.excluded.match((path,)) else in_form(weight, form)
        return weight


def in_form(weight: Weight, form: Form) -> Weight:
    """Return the weight as stored in ``form``."""
    bits = form.bits + form.per_row_bits / weight.columns
    return replace(weight, bits=bits, group=form.group, row_group=form.row_group)


class Patterns:
    """Names of modules as quantization configs write them: exact, by a part, with ``*``, or ``re:`` and an expression.

    Expressions that begin with a layer's number are kept by that number: some configs have hundreds of them.
    """

    def __init__(self, patterns: Iterable[str], prefix: str = "model.") -> None:
        self.prefix = prefix
        self.exact: set[str] = set()
        self.parts: set[str] = set()
        self.expressions: list[re.Pattern[str]] = []
        self.of_layer: dict[str, list[re.Pattern[str]]] = {}
        for pattern in patterns:
            self._add(pattern)

    def __bool__(self) -> bool:
        return bool(self.exact or self.parts or self.expressions or self.of_layer)

    def _add(self, pattern: str) -> None:
        if pattern.startswith("re:"):
            self.expressions.append(re.compile(pattern[3:]))
        elif "*" in pattern:
            plain = _plain(pattern)
            pieces = plain.split(".")
            counted = len(pieces) > 2 and pieces[0] == "layers" and pieces[1].isdigit()
            kept = self.of_layer.setdefault(pieces[1], []) if counted else self.expressions
            kept.append(re.compile(f"{translate(plain)}|{translate(plain + '.*')}"))
        elif "." in pattern:
            self.exact.add(_plain(pattern))
        else:
            self.parts.add(pattern)

    def match(self, paths: Iterable[str]) -> bool:
        """Return whether a pattern names one of ``paths``, or a module that contains it."""
        return any(self._matches(_plain(path)) for path in paths)

    def _matches(self, path: str) -> bool:
        pieces = path.split(".")
        if self.parts and not self.parts.isdisjoint(pieces):
            return True
        if self.exact and any(".".join(pieces[:end]) in self.exact for end in range(1, len(pieces) + 1)):
            return True
        numbered = self.of_layer.get(pieces[1], ()) if len(pieces) > 1 else ()
        if any(expression.match(path) for expression in numbered):
            return True
        whole = self.prefix + path
        return any(expression.match(path) or expression.match(whole) for expression in self.expressions)


@lru_cache(maxsize=65536)
def _plain(path: str) -> str:
    for prefix in PREFIXES:
        if path.startswith(prefix):
            path = path.removeprefix(prefix)
            break
    padded = f".{path}."
    for old, new in SPELLINGS:
        padded = padded.replace(old, new)
    return padded[1:-1]
