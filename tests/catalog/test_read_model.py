"""Tests that models are read from folders, files, addresses and names, as exactly as each allows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import longboat.builtin
from catalog.file_builders import gguf_header, safetensors_header, write_model
from catalog.shape_builders import kv_fixed_bytes
from longboat.catalog.formats.safetensors import read_header
from longboat.catalog.library import built_in_library
from longboat.catalog.read_model import Fetch, read_model
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.from_tensors import shape_from_tensors
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import TransferError, UserInputError

LIBRARY = built_in_library()
HIDDEN, VOCAB, WIDTH = 256, 1000, 512
CONFIG: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": HIDDEN,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCAB,
    "intermediate_size": WIDTH,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
Entry = tuple[str, str, Sequence[int]]


def layer(index: int, *, mlp: str = "BF16") -> list[Entry]:
    sizes = {
        "self_attn.q_proj": (256, HIDDEN),
        "self_attn.k_proj": (128, HIDDEN),
        "self_attn.v_proj": (128, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 256),
        "self_attn.q_norm": (64,),
        "self_attn.k_norm": (64,),
        "mlp.gate_proj": (WIDTH, HIDDEN),
        "mlp.up_proj": (WIDTH, HIDDEN),
        "mlp.down_proj": (HIDDEN, WIDTH),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    return [
        (f"model.layers.{index}.{name}.weight", mlp if name.startswith("mlp") else "BF16", shape)
        for name, shape in sizes.items()
    ]


ENDS: list[Entry] = [
    ("model.embed_tokens.weight", "BF16", (VOCAB, HIDDEN)),
    ("model.norm.weight", "BF16", (HIDDEN,)),
    ("lm_head.weight", "BF16", (VOCAB, HIDDEN)),
]


def test_folder_gives_exact_bytes_with_the_caches_of_its_config(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "boat", CONFIG, [*ENDS, *layer(0), *layer(1)])
    told, exact = shape_from_config(CONFIG, name="boat"), read_model(str(folder), LIBRARY)
    assert exact.num_params == told.num_params
    assert exact.weight_bytes == told.weight_bytes
    assert [one.cache for one in exact.layers] == [one.cache for one in told.layers]
    assert exact.estimate == ()
    shards = {weight.name: (weight.shard, weight.units) for weight in exact.layers[0].weights}
    assert shards["self_attn.k_proj"] == ("kv_heads", 2)
    assert shards["mlp.down_proj"] == ("in", 0)


def test_shards_of_an_index_are_added_up(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "boat", CONFIG, [*ENDS, *layer(0)], layer(1))
    assert read_model(str(folder), LIBRARY).num_params == shape_from_config(CONFIG).num_params


def test_missing_shards_are_told(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "boat", CONFIG, [*ENDS, *layer(0)], layer(1))
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserInputError, match="lacks 1 of 2 files of weights, such as model-00002-of-00002"):
        read_model(str(folder), LIBRARY)


def test_quantized_parts_take_the_bytes_of_the_files(tmp_path: Path) -> None:
    """The config promises bf16; the files hold the MLP in 8 bits with scales."""
    scales = [(f"model.layers.0.mlp.{name}.weight_scale_inv", "F32", (4, 2)) for name in ("gate_proj", "up_proj")]
    tensors = [*ENDS, *layer(0, mlp="F8_E4M3"), *layer(1), *scales]
    shape = read_model(str(write_model(tmp_path / "boat", CONFIG, tensors)), LIBRARY)
    first = {weight.name: weight for weight in shape.layers[0].weights}
    assert first["mlp.gate_proj"].num_bytes == WIDTH * HIDDEN + 32
    assert first["mlp.down_proj"].num_bytes == HIDDEN * WIDTH
    assert shape.num_params == shape_from_config(CONFIG).num_params


def test_packed_integers_count_as_the_numbers_they_hold(tmp_path: Path) -> None:
    packed = [
        entry
        for name, rows, columns in (
            ("gate_proj", WIDTH, HIDDEN),
            ("up_proj", WIDTH, HIDDEN),
            ("down_proj", HIDDEN, WIDTH),
        )
        for entry in (
            (f"model.layers.0.mlp.{name}.qweight", "I32", (columns, rows // 8)),
            (f"model.layers.0.mlp.{name}.scales", "F16", (columns // 128, rows)),
            (f"model.layers.0.mlp.{name}.qzeros", "I32", (columns // 128, rows // 8)),
        )
    ]
    kept = [entry for entry in layer(0) if ".mlp." not in entry[0]]
    shape = read_model(str(write_model(tmp_path / "boat", CONFIG, [*ENDS, *kept, *packed, *layer(1)])), LIBRARY)
    first = {weight.name: weight for weight in shape.layers[0].weights}
    assert (first["mlp.up_proj"].rows, first["mlp.up_proj"].columns) == (WIDTH, HIDDEN)
    assert first["mlp.up_proj"].bits == pytest.approx(4 + 16 / 128 + 4 / 128)
    assert shape.num_params == shape_from_config(CONFIG).num_params


def test_copy_of_a_tied_embedding_is_not_loaded(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "boat", CONFIG | {"tie_word_embeddings": True}, [*ENDS, *layer(0), *layer(1)])
    assert read_model(str(folder), LIBRARY).tied


def test_files_that_disagree_with_their_config_are_marked(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "boat", CONFIG, [*ENDS, *layer(0)])
    assert "the files hold" in read_model(str(folder), LIBRARY).estimate[0]


def test_files_without_config_are_planned_as_an_estimate(tmp_path: Path) -> None:
    shape = read_model(str(write_model(tmp_path / "boat", None, [*ENDS, *layer(0), *layer(1)])), LIBRARY)
    told = shape_from_config(CONFIG)
    assert (shape.num_params, shape.hidden_size, shape.vocab_size) == (told.num_params, HIDDEN, VOCAB)
    assert shape.kv_bytes_per_token() == told.kv_bytes_per_token()
    assert "there is no config" in shape.estimate[0]


def test_config_that_says_too_little_is_helped_by_the_files(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "boat", {"architectures": ["Odd"]}, [*ENDS, *layer(0), *layer(1)])
    shape = read_model(str(folder), LIBRARY)
    assert shape.num_params == shape_from_config(CONFIG).num_params
    assert any("hidden_size" in reason for reason in shape.estimate)


def test_experts_of_one_name_are_one_weight(tmp_path: Path) -> None:
    config = CONFIG | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    experts = [
        (f"model.layers.{index}.mlp.experts.{expert}.{name}.weight", "BF16", shape)
        for index in range(2)
        for expert in range(4)
        for name, shape in (("gate_proj", (128, HIDDEN)), ("up_proj", (128, HIDDEN)), ("down_proj", (HIDDEN, 128)))
    ]
    routers = [(f"model.layers.{index}.mlp.gate.weight", "BF16", (4, HIDDEN)) for index in range(2)]
    kept = [entry for index in range(2) for entry in layer(index) if ".mlp." not in entry[0]]
    shape = read_model(str(write_model(tmp_path / "boat", config, [*ENDS, *kept, *experts, *routers])), LIBRARY)
    told = shape_from_config(config)
    assert (shape.num_params, shape.num_active_params) == (told.num_params, told.num_active_params)
    assert {w.count for w in shape.layers[0].weights if w.part == "experts"} == {4}


def test_fused_experts_in_mxfp4_blocks_are_read(tmp_path: Path) -> None:
    tensors: list[Entry] = [
        *ENDS,
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", "U8", (4, 1024, 8, 16)),
        ("model.layers.0.mlp.experts.gate_up_proj_scales", "U8", (4, 1024, 8)),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", "BF16", (4, 1024)),
    ]
    shape = read_model(str(write_model(tmp_path / "boat", None, tensors)), LIBRARY)
    (weight,) = shape.layers[0].weights
    assert (weight.part, weight.count, weight.rows, weight.columns) == ("experts", 4, 1024, 256)
    assert weight.num_bytes == 4 * 1024 * (8 * 16 + 8 + 2)


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="has no config"):
        read_model(str(tmp_path), LIBRARY)


@pytest.mark.parametrize("data", [b"", b"\x05\0\0\0\0\0\0\0{", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]"])
def test_broken_safetensors_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(UserInputError, match=r"model\.safetensors"):
        read_model(str(tmp_path / "model.safetensors"), LIBRARY)


def gguf(num_layers: int = 2, *, architecture: str = "llama", **more: object) -> bytes:
    metadata: dict[str, object] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": num_layers,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.context_length": 8192,
        "tokenizer.ggml.tokens": [f"token {index}" for index in range(5000)],
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    tensors: list[tuple[str, int, Sequence[int]]] = [
        ("token_embd.weight", 12, (VOCAB, HIDDEN)),
        ("output.weight", 14, (VOCAB, HIDDEN)),
    ]
    for index in range(num_layers):
        tensors += [
            (f"blk.{index}.attn_q.weight", 12, (HIDDEN, HIDDEN)),
            (f"blk.{index}.attn_k.weight", 12, (128, HIDDEN)),
            (f"blk.{index}.attn_v.weight", 14, (128, HIDDEN)),
            (f"blk.{index}.attn_output.weight", 12, (HIDDEN, HIDDEN)),
            (f"blk.{index}.ffn_up.weight", 12, (WIDTH, HIDDEN)),
            (f"blk.{index}.ffn_down.weight", 39, (HIDDEN, WIDTH)),
            (f"blk.{index}.attn_norm.weight", 0, (HIDDEN,)),
        ]
    return gguf_header(metadata, tensors)


def check_gguf(shape: ModelShape) -> None:
    parts = {weight.name: weight for weight in shape.layers[0].weights}
    assert parts["attn_q"].num_bytes == HIDDEN * HIDDEN // 256 * 144
    assert parts["attn_v"].num_bytes == 128 * HIDDEN // 256 * 210
    assert parts["ffn_down"].num_bytes == HIDDEN * WIDTH // 32 * 17
    assert (parts["attn_k"].shard, parts["ffn_down"].shard, parts["ffn_up"].shard) == ("kv_heads", "in", "out")
    assert shape.head is not None
    assert shape.head.num_bytes == VOCAB * HIDDEN // 256 * 210
    assert shape.kv_bytes_per_token(2) == 2 * 2 * 2 * 64 * 2
    assert (shape.max_context_tokens, shape.quantization, shape.estimate) == (8192, "q4_k", ())


def test_gguf_file_gives_exact_bytes(tmp_path: Path) -> None:
    (tmp_path / "boat.gguf").write_bytes(gguf())
    check_gguf(read_model(str(tmp_path / "boat.gguf"), LIBRARY))
    check_gguf(read_model(str(tmp_path), LIBRARY))


def test_a_file_of_a_repository_is_read_as_far_as_its_header() -> None:
    whole, urls = gguf(), set[str]()

    def fetch(url: str, offset: int, length: int) -> bytes:
        urls.add(url)
        return whole[offset : offset + length]

    check_gguf(read_model("acme/boat-GGUF:q4/boat.gguf", LIBRARY, fetch))
    assert urls == {"https://huggingface.co/acme/boat-GGUF/resolve/main/q4/boat.gguf"}


def test_parts_of_a_gguf_model_are_read_together(tmp_path: Path) -> None:
    rest = gguf_header({"split.no": 1}, [("blk.1.ffn_gate.weight", 12, (WIDTH, HIDDEN))])
    (tmp_path / "boat-00001-of-00002.gguf").write_bytes(gguf())
    with pytest.raises(UserInputError, match="boat-00002-of-00002"):
        read_model(str(tmp_path / "boat-00001-of-00002.gguf"), LIBRARY)
    (tmp_path / "boat-00002-of-00002.gguf").write_bytes(rest)
    shape = read_model(str(tmp_path / "boat-00001-of-00002.gguf"), LIBRARY)
    assert shape.layers[1].num_params - shape.layers[0].num_params == WIDTH * HIDDEN
    parts = {f"https://hub/{path.name}?download=true": path.read_bytes() for path in tmp_path.iterdir()}
    for url in sorted(parts):
        assert read_model(url, LIBRARY, serving(parts)).weight_bytes == shape.weight_bytes
    for name in ("boat-00001-of-00000.gguf", "BOAT.GGUF"):
        (tmp_path / name).write_bytes(gguf())
        check_gguf(read_model(str(tmp_path / name), LIBRARY))


def test_window_of_a_gguf_model_follows_the_pattern_of_its_architecture(tmp_path: Path) -> None:
    data = gguf(6, architecture="gemma3", gemma3__attention__sliding_window=1024)
    (tmp_path / "boat.gguf").write_bytes(data)
    kinds = [layer.cache.kind for layer in read_model(str(tmp_path / "boat.gguf"), LIBRARY).layers]
    assert kinds == ["window"] * 5 + ["full"]


def test_recurrent_layers_of_a_gguf_model_keep_a_state(tmp_path: Path) -> None:
    """Widths of Qwen3-Next: three layers of the gated delta rule, then one that attends."""
    sizes = {"inner_size": 4096, "state_size": 128, "group_count": 16, "conv_kernel": 4}
    metadata = {f"qwen3next.ssm.{name}": size for name, size in sizes.items()} | {
        "general.architecture": "qwen3next",
        "qwen3next.block_count": 4,
        "qwen3next.embedding_length": HIDDEN,
        "qwen3next.attention.head_count": 16,
        "qwen3next.attention.head_count_kv": 2,
        "qwen3next.attention.key_length": 256,
    }
    tensors = [(f"blk.{index}.ssm_out.weight", 12, (HIDDEN, 4096)) for index in range(3)]
    tensors.append(("blk.3.attn_k.weight", 12, (512, HIDDEN)))
    (tmp_path / "boat.gguf").write_bytes(gguf_header(metadata, tensors))
    shape = read_model(str(tmp_path / "boat.gguf"), LIBRARY)
    assert [layer.cache.kind for layer in shape.layers] == ["state"] * 3 + ["full"]
    assert kv_fixed_bytes(shape) == 3 * 4 * (3 * 8192 + 128 * 4096)
    assert shape.kv_bytes_per_token(2) == 2 * 2 * 256 * 2


def test_unknown_gguf_architecture_is_marked(tmp_path: Path) -> None:
    (tmp_path / "boat.gguf").write_bytes(gguf(architecture="newboat"))
    assert "newboat is unknown" in read_model(str(tmp_path / "boat.gguf"), LIBRARY).estimate[0]


@pytest.mark.parametrize("cut", [0, 3, 20, 100, 60_000])
def test_cut_gguf_files_are_refused(tmp_path: Path, cut: int) -> None:
    (tmp_path / "boat.gguf").write_bytes(gguf()[:cut])
    with pytest.raises(UserInputError, match=r"boat\.gguf"):
        read_model(str(tmp_path / "boat.gguf"), LIBRARY)


def test_other_files_are_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "boat.gguf").write_bytes(b"GGML" + bytes(100))
    with pytest.raises(UserInputError, match="instead of GGUF"):
        read_model(str(tmp_path / "boat.gguf"), LIBRARY)


def serving(files: Mapping[str, bytes], log: list[tuple[int, int]] | None = None) -> Fetch:
    def fetch(url: str, offset: int, length: int) -> bytes:
        if log is not None:
            log.append((offset, length))
        return files[url][offset : offset + length]

    return fetch


def test_gguf_is_read_by_ranges_over_the_network() -> None:
    url, log = "https://example.org/boat.gguf", list[tuple[int, int]]()
    check_gguf(read_model(url, LIBRARY, serving({url: gguf() + bytes(5 << 20)}, log)))
    assert log == [(0, 1 << 20)]


def test_header_longer_than_the_first_piece_is_read_on() -> None:
    url, log = "https://example.org/boat.gguf", list[tuple[int, int]]()
    data = gguf(general__tags=["x" * 1000 for _ in range(1500)])
    check_gguf(read_model(url, LIBRARY, serving({url: data}, log)))
    assert [offset for offset, _ in log] == [0, 1 << 20]


URL = "https://example.org/boat.gguf"
BASE = "https://huggingface.co/acme/boat/resolve/main"


def test_hub_name_is_read_from_config_and_headers() -> None:
    weights = safetensors_header([*ENDS, *layer(0), *layer(1)])
    files = {f"{BASE}/config.json": json.dumps(CONFIG).encode(), f"{BASE}/model.safetensors": weights}
    shape = read_model("acme/boat", LIBRARY, serving(files))
    assert shape.num_params == shape_from_config(CONFIG).num_params
    assert shape.estimate == ()


def test_hub_name_without_network_says_what_to_do() -> None:
    with pytest.raises(UserInputError, match="there is no network") as caught:
        read_model("acme/boat", LIBRARY)
    assert "a folder, a GGUF file or a config.json" in caught.value.hint


def test_hub_name_of_a_known_model_needs_no_network() -> None:
    shape = read_model("Qwen/Qwen3-8B", LIBRARY)
    assert shape.num_params == 8_190_735_360
    assert "there is no network to reach the hub" in shape.estimate[-1]


def test_known_model_is_planned_when_the_network_fails() -> None:
    def fetch(url: str, offset: int, length: int) -> bytes:
        raise TransferError(f"no answer from {url}")

    shape = read_model("Qwen/Qwen3-8B", LIBRARY, fetch)
    assert shape.num_params == 8_190_735_360
    assert "the catalog's Qwen3-8B: no answer from https" in shape.estimate[-1]
    with pytest.raises(TransferError):
        read_model("acme/boat", LIBRARY, fetch)


def test_unreadable_config_on_the_hub_is_said_where_the_catalog_helps() -> None:
    files = {"https://huggingface.co/Qwen/Qwen3-8B/resolve/main/config.json": b"<html>sign in</html>"}
    shape = read_model("Qwen/Qwen3-8B", LIBRARY, serving(files))
    assert shape.num_params == 8_190_735_360
    assert "config.json of Qwen/Qwen3-8B is not JSON" in shape.estimate[-1]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "there is no https://huggingface.co/acme/boat/resolve/main/model.safetensors"),
        ({"model.safetensors": b"\x10\0\0\0\0\0\0\0nothing"}, "model.safetensors"),
        ({"model.safetensors.index.json": b"[]"}, "index.json"),
    ],
)
def test_unreadable_headers_on_the_hub_are_said(files: dict[str, bytes], reason: str) -> None:
    served = {f"{BASE}/{name}": data for name, data in files.items()}
    shape = read_model("acme/boat", LIBRARY, serving({f"{BASE}/config.json": json.dumps(CONFIG).encode(), **served}))
    assert shape.num_params == shape_from_config(CONFIG).num_params
    assert any("no headers were read" in line and reason in line for line in shape.estimate)


def test_unreadable_quantization_on_the_hub_is_said() -> None:
    files = {"config.json": json.dumps(CONFIG).encode(), "hf_quant_config.json": b"{"}
    files["model.safetensors"] = safetensors_header([*ENDS, *layer(0), *layer(1)])
    shape = read_model("acme/boat", LIBRARY, serving({f"{BASE}/{name}": data for name, data in files.items()}))
    assert any("hf_quant_config.json of acme/boat is not JSON" in line for line in shape.estimate)


def test_network_that_fails_after_the_config_is_said() -> None:
    def fetch(url: str, offset: int, length: int) -> bytes:
        if url.endswith("/config.json"):
            return json.dumps(CONFIG).encode()
        raise TransferError(f"no answer from {url}")

    assert any("no answer from" in line for line in read_model("acme/boat", LIBRARY, fetch).estimate)


def test_missing_hub_model_is_told() -> None:
    with pytest.raises(UserInputError, match="there is no https"):
        read_model("acme/nothing", LIBRARY, serving({}))


@pytest.mark.parametrize("source", ["./nowhere/at/all", "http://example.org/page.html", "qqqq"])
def test_what_is_no_model_is_refused(source: str) -> None:
    with pytest.raises(UserInputError) as caught:
        read_model(source, LIBRARY, serving({}))
    assert caught.value.hint


@pytest.mark.parametrize("text", ["{}", "[]", "5", '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "../../b"}}'])
def test_broken_indexes_are_refused(tmp_path: Path, text: str) -> None:
    folder = write_model(tmp_path / "boat", CONFIG, [*ENDS, *layer(0)], layer(1))
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserInputError, match=r"index\.json"):
        read_model(str(folder), LIBRARY)


def test_an_index_that_names_a_folder_lacks_that_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "boat", CONFIG, [*ENDS, *layer(0)], layer(1))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "deep"}}')
    (folder / "deep").mkdir()
    with pytest.raises(UserInputError, match="lacks 1 of 1 files of weights, such as deep"):
        read_model(str(folder), LIBRARY)


def test_weights_in_another_format_are_not_read_as_text(tmp_path: Path) -> None:
    with (tmp_path / "pytorch_model.bin").open("wb") as file:
        file.truncate((1 << 27) + 1)
    with pytest.raises(UserInputError, match="has 134217729 bytes, the limit"):
        read_model(str(tmp_path / "pytorch_model.bin"), LIBRARY)


def test_counts_that_no_safetensors_file_holds_are_refused() -> None:
    entry = {"dtype": "BF16", "shape": [1], "data_offsets": [0, 1 << 64]}
    with pytest.raises(UserInputError, match="no shape or offsets for 'a'"):
        read_header(json.dumps({"a": entry}).encode(), "x")


def test_impossibly_many_layers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "boat.gguf").write_bytes(gguf(1, llama__block_count=4_000_000_000))
    write_model(tmp_path / "named", None, [("model.layers.900000000.mlp.up_proj.weight", "BF16", (4, 4))])
    write_model(tmp_path / "told", CONFIG | {"num_hidden_layers": 10**12}, ENDS)
    for source in ("boat.gguf", "named", "told/config.json"):
        with pytest.raises(UserInputError, match="layer"):
            read_model(str(tmp_path / source), LIBRARY)


@given(st.integers(0, 3000), st.binary(min_size=1, max_size=40))
def test_spoilt_gguf_headers_are_read_or_refused(at: int, spoilt: bytes) -> None:
    data = gguf(1, tokenizer__ggml__tokens=["a", "b"])
    data = data[:at] + spoilt + data[at + len(spoilt) :]
    with contextlib.suppress(UserInputError):
        shape = read_model(URL, LIBRARY, serving({URL: data}))
        assert shape.weight_bytes >= 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["shape", "data_offsets", "dtype", "model.layers.0.mlp.up_proj.weight"]), inner
        )
    ),
)


@given(JSON)
def test_any_safetensors_header_is_read_or_refused(header: object) -> None:
    text = json.dumps(header).encode()
    with contextlib.suppress(UserInputError):
        shape_from_tensors(read_header(text, "x.safetensors"))


def test_built_in_model_is_counted_to_the_byte() -> None:
    folder = Path(longboat.builtin.__file__).parent / "tiny"
    file = folder / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    shape = read_model(str(folder), LIBRARY)
    assert shape.weight_bytes == file.stat().st_size - header
    assert shape.estimate == ()
