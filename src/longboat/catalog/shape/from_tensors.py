"""Makes a shape from the tensors of a file: bytes exactly as stored, layer by layer and part by part.

What tensors do not show (heads, windows, how many experts a token passes) comes from a shape that was read from the
config, where there is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from longboat.catalog.shape.cache import NO_CACHE, Cache
from longboat.catalog.shape.model_shape import MAX_LAYERS, Layer, ModelShape, share_equal_layers
from longboat.catalog.shape.tensors import Place, Tensor, part_of, place_of, shard_of
from longboat.catalog.shape.weight import Part, Weight
from longboat.core.errors import UserInputError

__all__ = ("shape_from_tensors", "with_exact_weights")

# A larger difference between the parameters of files and config is reported.
MAX_DIFFERENCE = 0.005
NO_CONFIG = "heads, caches and active experts are guessed from the widths of the weights: there is no config"
# Numbers in one element of a packed type, where the file does not say.
PACKED = {"I32": 8, "U8": 2, "F4": 1}
# Prefix of reasons for an estimate that no longer hold once the weights are known.
ABOUT_WEIGHTS = "weights: "


@dataclass
class Module:
    """The tensors of one module: a weight, its scales and zero points, its bias; of all experts."""

    place: Place
    part: Part
    tensors: list[Tensor] = field(default_factory=list)
    experts: set[int] = field(default_factory=set)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def main(self) -> Tensor:
        return max(self.tensors, key=lambda tensor: tensor.num_bytes)


def with_exact_weights(shape: ModelShape, tensors: Iterable[Tensor]) -> ModelShape:
    """Return the shape of a config with its weights replaced by those in the files."""
    exact = shape_from_tensors(tensors, like=shape)
    difference = abs(exact.num_params - shape.num_params) / max(1, shape.num_params)
    doubts = [reason for reason in shape.estimate if not reason.startswith(ABOUT_WEIGHTS)]
    if difference > MAX_DIFFERENCE:
        doubts.append(
            f"the files hold {exact.num_params / 1e9:.2f} billion parameters, but the config describes "
            f"{shape.num_params / 1e9:.2f}: caches and operations are those of the config"
        )
    return replace(exact, estimate=tuple(doubts))


def shape_from_tensors(
    tensors: Iterable[Tensor],
    *,
    name: str = "",
    like: ModelShape | None = None,
    caches: Sequence[Layer] = (),
) -> ModelShape:
    """Make a shape of what the files hold.

    like: a shape from the config that has the rest; caches: layers that have it (from a GGUF header)
    Without either, caches follow from the widths of keys and values, and the shape is marked as an estimate.
    Raises UserInputError where the files name impossibly many layers.
    """
    modules = _modules(tensors)
    kinds = like.layers if like else tuple(caches)
    num_layers = len(kinds) or _num_layers(modules, name or "the file")
    known = _known(like)
    weights = {key: _weight(module, known) for key, module in modules.items()}
    layers = [_layer(index, weights, kinds) for index in range(num_layers)]
    embedding = _end(weights, "embedding")
    # Some files hold a copy of the embedding as the head; engines do not load it.
    head = None if like is not None and like.tied else _end(weights, "head")
    others = [_other(key, weight, num_layers) for key, weight in weights.items() if _is_other(key, weight, num_layers)]
    doubts = () if kinds else (NO_CONFIG,)
    base = like or _unnamed(name, embedding)
    return replace(
        base,
        layers=share_equal_layers(layers),
        embedding=embedding,
        head=head,
        others=tuple(others),
        estimate=(*base.estimate, *doubts),
    )


def _num_layers(places: Iterable[Place], origin: str) -> int:
    last = max((place.layer for place in places if place.layer is not None), default=-1)
    if last >= MAX_LAYERS:
        raise UserInputError(f"{origin} names layer {last}; the limit is {MAX_LAYERS}", hint="name a model's own file")
    return last + 1


def _modules(tensors: Iterable[Tensor]) -> dict[Place, Module]:
    modules: dict[Place, Module] = {}
    for tensor in tensors:
        place = place_of(tensor.name)
        key = Place(place.layer, place.module, None)
        module = modules.setdefault(key, Module(place=key, part=part_of(key)))
        module.tensors.append(tensor)
        if place.expert is not None:
            module.experts.add(place.expert)
    return modules


def _known(like: ModelShape | None) -> Mapping[tuple[int | None, str], Weight]:
    """Return weights of the config by layer and module: their divisions and groups hold for the files' weights too."""
    if like is None:
        return {}
    known: dict[tuple[int | None, str], Weight] = {}
    for index, layer in enumerate(like.layers):
        for weight in layer.weights:
            known[(index, _plain(weight.name))] = weight
    return known


def _plain(module: str) -> str:
    for old, new in (("block_sparse_moe.", "mlp."), ("feed_forward.", "mlp."), ("shared_expert.", "shared_experts.")):
        module = module.replace(old, new)
    return module


def _weight(module: Module, known: Mapping[tuple[int | None, str], Weight]) -> Weight:
    place, main = module.place, module.main
    twin = known.get((place.layer, _plain(place.module)))
    stacked = module.part == "experts" and not module.experts and len(main.shape) >= 3
    count = main.shape[0] if stacked else max(1, len(module.experts))
    numbers = _numbers(module, main, twin)
    rows, columns = _sides(main.shape[1:] if stacked else main.shape, max(1, numbers // count), twin)
    bits = module.num_bytes * 8 / max(1, rows * columns * count)
    if twin is not None:
        return replace(twin, rows=rows, columns=columns, count=count, bits=bits)
    return Weight(
        name=place.module,
        part=module.part,
        rows=rows,
        columns=columns,
        count=count,
        bits=bits,
        shard=shard_of(place.module, module.part),
    )


def _numbers(module: Module, main: Tensor, twin: Weight | None) -> int:
    """Count the parameters of the module, without scales and zero points."""
    mains = [tensor for tensor in module.tensors if tensor.name.rsplit(".", 1)[-1] == main.name.rsplit(".", 1)[-1]]
    stored = sum(tensor.num_numbers or tensor.num_elements for tensor in mains)
    if twin is not None and main.dtype in PACKED:
        return twin.rows * twin.columns * max(twin.count, 1)
    packed = main.dtype in PACKED and len(module.tensors) > len(mains)
    return stored * (PACKED[main.dtype] if packed else 1)


def _sides(stored: tuple[int, ...], numbers: int, twin: Weight | None) -> tuple[int, int]:
    """Return rows and columns of one copy of ``numbers`` parameters, which is ``stored`` in this shape."""
    if twin is not None and twin.rows * twin.columns == numbers:
        return twin.rows, twin.columns
    if len(stored) >= 2 and stored[0] and numbers % stored[0] == 0:
        return stored[0], numbers // stored[0]
    return numbers, 1


def _layer(index: int, weights: Mapping[Place, Weight], kinds: Sequence[Layer]) -> Layer:
    own = tuple(weight for place, weight in weights.items() if place.layer == index and weight.part != "mtp")
    if index < len(kinds):
        return replace(kinds[index], weights=own)
    experts = max((weight.count for weight in own if weight.part == "experts"), default=0)
    return Layer(weights=own, cache=_guessed_cache(own), num_experts=experts, experts_per_token=experts)


def _guessed_cache(weights: Sequence[Weight]) -> Cache:
    """Guess keys and values as wide as their projections; the number of heads is unknown."""
    rows: dict[str, int] = defaultdict(int)
    for weight in weights:
        if weight.shard == "kv_heads" and weight.columns > 1:
            rows["key" if "k" in weight.name.rsplit(".", 1)[-1].split("_") else "value"] += weight.rows
    if not rows:
        return NO_CACHE
    return Cache(kind="full", num_kv_heads=1, key_dim=rows["key"], value_dim=rows["value"])


def _end(weights: Mapping[Place, Weight], part: Part) -> Weight | None:
    found = [weight for place, weight in weights.items() if place.layer is None and weight.part == part]
    return max(found, key=lambda weight: weight.num_bytes) if found else None


def _is_other(place: Place, weight: Weight, num_layers: int) -> bool:
    if place.layer is not None:
        return place.layer >= num_layers or weight.part == "mtp"
    return weight.part not in ("embedding", "head")


def _other(place: Place, weight: Weight, num_layers: int) -> Weight:
    """Return a weight of no layer. Layers behind the last are modules for multi-token prediction."""
    if place.layer is None or (place.layer < num_layers and weight.part == "mtp"):
        return weight
    return replace(weight, part="mtp", name=f"mtp.{place.layer - num_layers}.{weight.name}")


def _unnamed(name: str, embedding: Weight | None) -> ModelShape:
    return ModelShape(
        name=name,
        architecture="",
        layers=(),
        embedding=None,
        hidden_size=embedding.columns if embedding else 0,
        vocab_size=embedding.rows if embedding else 0,
    )
