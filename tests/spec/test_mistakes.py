"""Mistakes in a fleet file: the place, the words of the message and the way out that the author gets to see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.errors import NotYetError, Problem, UserInputError
from longboat.spec.files.load import fleet_from, load_fleet, read_fleet, read_values
from longboat.spec.types.fleet import Fleet

# text of the file, path, words in the message, words in the hint
MISTAKES = {
    "unknown field at the top": ("modles: [builtin:tiny]\nmodels: [builtin:tiny]", "modles", "no field", "models"),
    "unknown field of a model": (
        "models: [{source: builtin:tiny, replica: 2}]",
        "models[0].replica",
        "no field 'replica'",
        "write replicas",
    ),
    "adapters for no tenant": (
        "models: [{source: builtin:tiny, adapters: [{name: ad, source: /x, tenants: []}]}]",
        "models[0].adapters[0].tenants",
        "0 entries, at least 1",
        "write at least 1",
    ),
    "no stages": (
        "models: [{source: builtin:tiny, placement: {stages: []}}]",
        "models[0].placement.stages",
        "0 entries, at least 1",
        "write at least 1",
    ),
    "no objectives": (
        "models: [{source: builtin:tiny, replicas: {max: 2, slo: []}}]",
        "models[0].replicas.slo",
        "0 entries, at least 1",
        "write at least 1",
    ),
    "a tenant that is a mapping": (
        "models: [{source: builtin:tiny, adapters: [{name: ad, source: /x, tenants: [{name: a}]}]}]\n"
        "gateway: {auth: keys, tenants: [{name: a}]}",
        "models[0].adapters[0].tenants",
        "a mapping is not text",
        "quotes",
    ),
    "replicas in quotes": (
        "models: [{source: builtin:tiny, replicas: '2'}]",
        "models[0].replicas",
        "is not a whole number",
        "write 2 without quotes",
    ),
    "replicas in a word": (
        "models: [{source: builtin:tiny, replicas: many}]",
        "models[0].replicas",
        "is not a whole number",
        "write a number, or auto",
    ),
    "autoscaling of another tool": (
        "models: [{source: builtin:tiny, min_replicas: 1}]",
        "models[0].min_replicas",
        "no field",
        "write replicas: {min: 1, max: 4, target_ongoing_requests: 16}",
    ),
    "objectives outside of replicas": (
        "models: [{source: builtin:tiny, slo: {}}]",
        "models[0].slo",
        "no field",
        "write replicas: {min: 1, max: 4, target_ongoing_requests: 16}, or slo: {ttft_ms: 1000} in it",
    ),
    "no data part": (
        "models: [{source: builtin:tiny, split: {data: 0}}]",
        "models[0].split.data",
        "0",
        "1",
    ),
    "too many ranks of data parts": (
        "models: [{source: builtin:tiny, split: {data: 64, tensor: 32}}]",
        "models[0].split",
        "64 x 32 are 2048 worker ranks",
        "split less",
    ),
    "proposals of a model that is not named": (
        "models: [{source: builtin:tiny, speculative: {method: draft}}]",
        "models[0].speculative",
        "draft needs a model",
        "write model: hf:ORGANISATION/NAME",
    ),
    "n-grams of a model": (
        "models: [{source: builtin:tiny, speculative: {method: ngram, model: hf:a/b}}]",
        "models[0].speculative",
        "ngram takes no model",
        "method: draft",
    ),
    "a look-up without n-grams": (
        "models: [{source: builtin:tiny, speculative: {method: mtp, lookup: 2}}]",
        "models[0].speculative",
        "mtp looks nothing up",
        "leave lookup out",
    ),
    "a built-in model that proposes": (
        "models: [{source: builtin:tiny, speculative: {method: draft, model: builtin:tiny}}]",
        "models[0].speculative.model",
        "is not a model that proposes tokens",
        "hf:",
    ),
    "a split in a word": (
        "models: [{source: builtin:tiny, split: fast}]",
        "models[0].split",
        "is not a mapping",
        "write split: {tensor: 2}, or auto",
    ),
    "a part of a split in a word": (
        "models: [{source: builtin:tiny, split: {tensor: fast}}]",
        "models[0].split.tensor",
        "is not a whole number",
        "write a number, or auto",
    ),
    "layers for stages that are left to decide": (
        "models: [{source: builtin:tiny, split: {pipeline: auto, layers: [2, 2]}}]",
        "models[0].split.layers",
        "layers is set, and pipeline is auto",
        "write pipeline: 2, or no layers",
    ),
    "layers for other stages": (
        "models: [{source: builtin:tiny, split: {pipeline: 3, layers: [2, 2]}}]",
        "models[0].split.layers",
        "2 numbers of layers for 3 pipeline stages",
        "write pipeline: 2",
    ),
    "a load of nobody": (
        "models: [{source: builtin:tiny, load: {users: 0}}]",
        "models[0].load.users",
        "less than the smallest allowed, 1",
        "write 1",
    ),
    "unknown field of a split": (
        "models: [{source: builtin:tiny, split: {pipelin: 2}}]",
        "models[0].split.pipelin",
        "no field",
        "write pipeline",
    ),
    "field of another section": (
        "models: [{source: builtin:tiny, tensor: 2}]",
        "models[0].tensor",
        "no field 'tensor'",
        "models[...].split",
    ),
    "name of another tool": (
        "models: [{source: builtin:tiny, max_model_len: 512}]",
        "models[0].max_model_len",
        "no field",
        "write context",
    ),
    "number in quotes": (
        'models: [{source: builtin:tiny, replicas: "2"}]',
        "models[0].replicas",
        "'2' is not a whole number",
        "write 2 without quotes",
    ),
    "half a replica": (
        "models: [{source: builtin:tiny, replicas: 1.5}]",
        "models[0].replicas",
        "1.5 is not a whole number",
        "write 2",
    ),
    "truth for a number": (
        "models: [{source: builtin:tiny, replicas: true}]",
        "models[0].replicas",
        "true is not a whole number",
        "number",
    ),
    "too many replicas": (
        "models: [{source: builtin:tiny, replicas: 1001}]",
        "models[0].replicas",
        "1001 is more than the limit, 1000",
        "write 1000",
    ),
    "no tensor rank": (
        "models: [{source: builtin:tiny, split: {tensor: 0}}]",
        "models[0].split.tensor",
        "0 is less than the smallest allowed, 1",
        "write 1",
    ),
    "too many ranks": (
        "models: [{source: builtin:tiny, split: {tensor: 1024, pipeline: 2}}]",
        "models[0].split",
        "2048 worker ranks, the limit is 1024",
        "split less",
    ),
    "version as a number": (
        "models: [{source: builtin:tiny, engine: {version: 0.32}}]",
        "models[0].engine.version",
        "0.32 is not text",
        '"0.32"',
    ),
    "version and environment": (
        'models: [{source: builtin:tiny, engine: {version: "0.32.0", environment: /opt/vllm}}]',
        "models[0].engine.environment",
        "version and environment are both given",
        "one of the two",
    ),
    "relative environment": (
        "models: [{source: builtin:tiny, engine: {environment: venv}}]",
        "models[0].engine.environment",
        "not an absolute path",
        "as the nodes see it",
    ),
    "mistyped engine": (
        "models: [{source: builtin:tiny, engine: vlm}]",
        "models[0].engine",
        "'vlm' is not one of",
        "vllm",
    ),
    "options for a real engine": (
        "models: [{source: builtin:tiny, engine: {kind: vllm, options: {ttft_ms: 5}}}]",
        "models[0].engine.options",
        "options are for the fake engine",
        "engine.args",
    ),
    "unknown option of the fake engine": (
        "models: [{source: builtin:tiny, engine: {kind: fake, options: {ttft: 5}}}]",
        "models[0].engine.options.ttft",
        "no field",
        "write ttft_ms",
    ),
    "argument that is a number": (
        "models: [{source: builtin:tiny, engine: {args: [--max-num-seqs, 8]}}]",
        "models[0].engine.args[1]",
        "8 is not text",
        '"8"',
    ),
    "argument with a NUL": (
        'models: [{source: builtin:tiny, engine: {args: [a, "b\\0"]}}]',
        "models[0].engine.args[1]",
        "'b\\x00' has a character that an argument cannot have",
        "without NUL",
    ),
    "environment with a NUL": (
        'models: [{source: builtin:tiny, engine: {environment: "/opt/\\0"}}]',
        "models[0].engine.environment",
        "has a character",
        "UTF-8",
    ),
    "memory without a unit": (
        "models: [{source: builtin:tiny, resources: {memory: 4G}}]",
        "models[0].resources.memory",
        "'4G' is not an amount",
        "4GiB",
    ),
    "two GPUs for a rank": (
        "models: [{source: builtin:tiny, resources: {gpus: 2}}]",
        "models[0].resources.gpus",
        "one GPU, not 2",
        "split.tensor",
    ),
    "label that is a number": (
        "models: [{source: builtin:tiny, placement: {labels: {rack: 7}}}]",
        "models[0].placement.labels.rack",
        "7 is not text",
        '"7"',
    ),
    "label with an operator": (
        'models: [{source: builtin:tiny, placement: {labels: {rack: "in(a,b)"}}}]',
        "models[0].placement.labels",
        "not a label's value",
        "letters, digits",
    ),
    "relative path": (
        "models: [models/qwen]",
        "models[0]",
        "'models/qwen' is a relative path",
        "/srv/fleets/models/qwen",
    ),
    "hub model without hf:": ("models: [Qwen/Qwen3-0.6B]", "models[0]", "relative path", "hf:Qwen/Qwen3-0.6B"),
    "model by its name in `fit` and `plan`": ("qwen3-0.6b", "", "is a relative path", "hf:Qwen/Qwen3-0.6B"),
    "model that nothing knows": ("nothere", "", "is a relative path", "hf:ORGANISATION/NAME"),
    "built-in model without builtin:": ("tiny", "", "'tiny' is a relative path", "builtin:tiny"),
    "home folder": ("models: [~/qwen]", "models[0]", "another folder on each node", "absolute path"),
    "service of somebody else": (
        "models: ['openai:gpt-4o']",
        "models[0]",
        "openai: is not a place that models come from",
        "hf:ORGANISATION/NAME",
    ),
    "hub in capitals": ("models: ['HF:Qwen/Qwen3-0.6B']", "models[0]", "HF: is not", "write hf:Qwen/Qwen3-0.6B"),
    "file of a hub without an ending": (
        "models: ['hf:Qwen/Qwen3-0.6B-GGUF:Q8_0']",
        "models[0]",
        "is not hf:ORGANISATION/NAME",
        "hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf",
    ),
    "llama.cpp in one word": (
        "models: [{source: builtin:tiny, engine: llamacpp}]",
        "models[0].engine",
        "'llamacpp' is not one of",
        "write llama.cpp",
    ),
    "engine that runs already": (
        "models: [{source: builtin:tiny, url: 'http://h:1'}]",
        "models[0].url",
        "no field 'url'",
        "longboat gateway run --upstream",
    ),
    "file of a gateway alone": (
        "models: [builtin:tiny]\nupstreams: [{model: a, url: 'http://h:1'}]",
        "upstreams",
        "no field 'upstreams'",
        "longboat gateway run --config",
    ),
    "task of a model": (
        "models: [{source: builtin:tiny, task: embedding}]",
        "models[0].task",
        "'embedding'",
        "embed",
    ),
    "fallback of another task": (
        "{models: [{source: builtin:tiny, name: a}, {source: builtin:tiny, name: b, task: embed}], "
        "gateway: {fallbacks: {a: [b]}}}",
        "gateway.fallbacks.a[0]",
        "'b' makes embeddings, and 'a' generates text",
        "name a model with task: generate",
    ),
    "alias of two tasks": (
        "{models: [{source: builtin:tiny, name: a}, {source: builtin:tiny, name: b, task: embed}], "
        "gateway: {aliases: [{name: c, pools: [{model: b}, {model: a}]}]}}",
        "gateway.aliases[0].pools[1].model",
        "'a' generates text, and 'b' makes embeddings",
        "name a model with task: embed",
    ),
    "setting of vLLM": (
        "models: [{source: builtin:tiny, gpu_memory_utilization: 0.9}]",
        "models[0].gpu_memory_utilization",
        "no field",
        'engine: {args: [--gpu-memory-utilization, "VALUE"]}',
    ),
    "switch of vLLM": (
        "models: [{source: builtin:tiny, engine: {trust_remote_code: true}}]",
        "models[0].engine.trust_remote_code",
        "no field",
        "engine: {args: [--trust-remote-code]}",
    ),
    "seconds with a unit": (
        "models: [{source: builtin:tiny, update: {drain_s: 2m}}]",
        "models[0].update.drain_s",
        "'2m' is not a number",
        "write 120: drain_s is in seconds",
    ),
    "thousands with a letter": (
        "models: [{source: builtin:tiny, context: 32k}]",
        "models[0].context",
        "'32k' is not a whole number",
        "write 32000 or 32768 in full, whichever is meant",
    ),
    "thousands with a letter, of requests": (
        "models: [builtin:tiny]\ngateway: {queue: {max_waiting: 2k}}",
        "gateway.queue.max_waiting",
        "'2k' is not a whole number",
        "write the number in full: 2000",
    ),
    "half a hub name": ("models: ['hf:Qwen3']", "models[0]", "is not hf:ORGANISATION/NAME", "hf:Qwen/Qwen3-0.6B"),
    "no source": ("models: [{name: a}]", "models[0].source", "source is missing", "builtin:tiny"),
    "name that no URL takes": (
        "models: [{name: my model, source: builtin:tiny}]",
        "models[0].name",
        "'my model' cannot stand in a URL",
        "write my-model",
    ),
    "name of a hub, as vLLM serves it": (
        "models: [{name: Qwen/Qwen3-8B, source: hf:Qwen/Qwen3-8B}]",
        "models[0].name",
        "'Qwen/Qwen3-8B' cannot stand in a URL",
        "gateway: {aliases: [{name: Qwen/Qwen3-8B, model: Qwen-Qwen3-8B}]}",
    ),
    "same name twice": (
        "models: [builtin:tiny, {source: builtin:tiny, replicas: 2}]",
        "models[1].source",
        "'tiny' is already the name of models[0]",
        "tiny-2",
    ),
    "fleet name with capitals": (
        "{name: My Fleet, models: [builtin:tiny]}",
        "name",
        "'My Fleet' is not",
        "write my-fleet",
    ),
    "another version of the format": (
        "{apiVersion: longboat/v2, models: [builtin:tiny]}",
        "apiVersion",
        "'longboat/v2' is not one of",
        "longboat/v1",
    ),
    "no models": ("name: a", "models", "models is missing", "models: [builtin:tiny]"),
    "an empty list of models": ("models: []", "models", "at least 1", "models: [builtin:tiny]"),
    "models that are no list": ("models: builtin:tiny", "models", "is not a list", "models: [builtin:tiny]"),
    "a model that is a number": ("models: [5]", "models[0]", "5 is not a model", "source"),
    "open gateway": (
        "{models: [builtin:tiny], gateway: {host: 0.0.0.0}}",
        "gateway.auth",
        "host 0.0.0.0 is open to other machines",
        "auth: none",
    ),
    "port that does not exist": (
        "{models: [builtin:tiny], gateway: {port: 80000}}",
        "gateway.port",
        "80000 is more than the limit, 65535",
        "write 65535",
    ),
    "an empty section": (
        "{models: [builtin:tiny], gateway: }",
        "gateway",
        "null is not a mapping",
        "leave the field out",
    ),
    "an empty file": ("# nothing\n", "", "the file is empty", "builtin:tiny"),
    "a list": ("- builtin:tiny", "", "the file is a list", "models:"),
    "a key twice": (
        "models:\n- source: builtin:tiny\n  replicas: 1\n  replicas: 2",
        "models[0].replicas",
        "written twice, in lines 3 and 4",
        "keep one",
    ),
    "an open bracket": ("models: [builtin:tiny\nname: a", "", "line 2, column 5", "brackets"),
    "a tab": ("models:\n\t- builtin:tiny", "", "line 2, column 1", "spaces"),
    "two documents": ("builtin:tiny\n---\nbuiltin:tiny", "", "line 2", "one fleet a file"),
    "a tag": ("models: [!!python/name:os.system x]", "models[0]", "line 1, column 10", "no ! tags"),
    "a key that is a number": ("8000: port", "", "the key 8000 is not text", '"8000"'),
}

MISTAKES |= {
    "a key in a source": ("models: ['s3://AK:SK@bucket/m']", "models[0]", "holds a key", "~/.aws"),
    "a query in a source": ("models: ['https://h/m?sig=1']", "models[0]", "a query", "~/.netrc"),
    "no bucket": ("models: ['s3:///m']", "models[0]", "'' is not a bucket's name", "s3://BUCKET/FOLDER"),
    "a way up": ("models: ['s3://bucket/../m']", "models[0]", "a character that it cannot have", "rename"),
    "no folder of a host": ("models: ['https://h']", "models[0]", "names no folder", "SHA256SUMS"),
    "a folder of a host": ("models: ['file://h/m']", "models[0]", "names no folder", "file:///the/folder"),
    "a key in the endpoint": (
        "{models: [builtin:tiny], weights: {endpoint: 'http://a:b@h'}}",
        "weights.endpoint",
        "holds a key",
        "AWS_ACCESS_KEY_ID",
    ),
    "an endpoint without http": (
        "{models: [builtin:tiny], weights: {endpoint: 'minio:9000'}}",
        "weights.endpoint",
        "is not the address",
        "https://",
    ),
    "a disk without a unit": ("{models: [builtin:tiny], weights: {disk: '500'}}", "weights.disk", "unit", "500GiB"),
    "no requests": ("{models: [builtin:tiny], weights: {limits: {requests: 0}}}", "weights.limits.requests", "0", "1"),
    "a node that cannot be": (
        "{models: [builtin:tiny], weights: {prewarm: ['a b']}}",
        "weights.prewarm[0].node",
        "is not a node's name",
        "longboat status",
    ),
    "a word near that of a node's labels": (
        "{models: [builtin:tiny], weights: {prewarm: [{node: a, lables: {zone: a}}]}}",
        "weights.prewarm[0].lables",
        "no field 'lables'",
        "write labels",
    ),
}

# text of the file, path, words in the message
NOT_YET = {
    "prefill": ("models: [{source: builtin:tiny, split: {prefill: 1}}]", "models[0].split.prefill", "prefill"),
    "oci": ("models: ['oci://registry/model']", "models[0]", "oci://"),
}


@pytest.mark.parametrize(("text", "where", "what", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_refused_with_its_place_and_a_way_out(text: str, where: str, what: str, hint: str) -> None:
    with pytest.raises(UserInputError) as caught:
        load_fleet(text, "fleet.yaml", folder="/srv/fleets")
    (problem,) = caught.value.problems
    assert problem.where == where
    assert what in problem.what
    assert hint in problem.hint
    assert caught.value.exit_code == 2
    assert "fleet.yaml" in str(caught.value)
    assert not isinstance(caught.value, NotYetError)


@pytest.mark.parametrize(("text", "where", "what"), NOT_YET.values(), ids=NOT_YET)
def test_later_work_is_refused_as_not_yet(text: str, where: str, what: str) -> None:
    with pytest.raises(NotYetError) as caught:
        load_fleet(text, "fleet.yaml", folder="/srv/fleets")
    (problem,) = caught.value.problems
    assert problem.where == where
    assert problem.what.startswith("not yet: ")
    assert what in problem.what
    assert problem.hint


def test_the_number_of_a_hint_is_one_that_the_field_takes() -> None:
    text = "{models: [builtin:tiny], gateway: {queue: {headroom_ratio: '95%'}}}"
    with pytest.raises(UserInputError) as caught:
        load_fleet(text, "fleet.yaml")
    assert caught.value.hint == "write 0.9"
    assert load_fleet(text.replace("'95%'", "0.9"), "fleet.yaml").gateway.queue.headroom_ratio == 0.9


def test_references_are_checked_beside_every_other_mistake() -> None:
    text = """
models: [{source: Qwen/Qwen3-0.6B}, {source: builtin:tiny, replicas: -1}, {source: builtin:tiny, name: c, slo: {}}]
gateway:
  port: 0
  tenants: [{name: a b, models: [Qwen3-0.6B, gone]}]
  aliases: [{name: chat, modle: tiny, model: nope}, {name: x, model: tiny, pools: 5}]
  fallbacks: {tiny: [c], c: [tiny], d: 1}
  rules: [{to: chat, weight: 1, tags: [t]}, {to: chatt}]
"""
    with pytest.raises(UserInputError) as caught:
        load_fleet(text, "fleet.yaml", folder="/srv")
    assert {problem.where for problem in caught.value.problems} == {
        "models[0].source", "models[1].replicas", "models[2].slo", "gateway.port", "gateway.tenants[0].name",
        "gateway.aliases[0].modle", "gateway.aliases[0].model", "gateway.aliases[1].pools", "gateway.fallbacks.tiny",
        "gateway.fallbacks.d", "gateway.rules[0].weight", "gateway.rules[1].to",
    }  # fmt: skip


def test_what_cannot_be_known_is_not_guessed() -> None:
    """A model without a readable name might be the one that is meant; so might a tenant."""
    text = """
models: [builtin:tiny, 5]
gateway: {auth: kyes, tenants: [7], aliases: [{name: x, model: other}], rules: [{to: other, tenants: [a], tags: [b]}]}
"""
    with pytest.raises(UserInputError) as caught:
        load_fleet(text, "fleet.yaml")
    assert {problem.where for problem in caught.value.problems} == {"models[1]", "gateway.auth", "gateway.tenants[0]"}


def test_the_part_without_mistakes_can_be_checked_further() -> None:
    text = "{models: [tiny, builtin:tiny, {source: builtin:tiny, name: b, slo: {}}, {source: builtin:tiny, name: c}]}"
    reading = read_fleet(text, "fleet.yaml", folder="/srv")
    assert reading.fleet is None
    assert reading.sound is not None
    assert [model.name for model in reading.sound.models] == ["tiny", "c"]
    assert reading.positions == (1, 3)


def test_the_models_with_mistakes_are_read_without_them() -> None:
    models = [
        {"source": "builtin:tiny", "name": "a", "replicas": 0.5, "engine": {"kind": "fake", "args": [5]}, "context": 8},
        "builtin:tiny",
        {"source": "builtin:tiny", "name": "c", "engine": {"knd": "fake"}, "split": {"tensor": 0, "pipeline": 2}},
        {"source": "builtin:tiny", "name": "d", "engin": "fake"},
        {"source": "tiny"},
    ]
    first, second, third = read_values({"models": models}, "x", folder="/srv").others
    assert (first.position, first.spec.engine.kind, first.spec.context, first.has_engine) == (0, "fake", 8, True)
    assert (second.position, second.spec.parts.pipeline, second.has_engine) == (2, 2, False)
    assert (third.position, third.has_engine) == (3, False)
    there, beside = (Problem(where=f"models[0].engine.{name}", what="w", hint="h") for name in ("args[0]", "argsy"))
    assert first.placed([there, beside]) == [beside]


def test_tasks_are_compared_beside_other_mistakes() -> None:
    text = """
models:
  - {source: builtin:tiny, name: a, replicas: many}
  - {source: builtin:tiny-embed, name: b, task: embed, contxt: 5}
  - {source: builtin:tiny-embed, name: c, tsk: embed}
gateway: {prot: 1, fallbacks: {a: [b], b: [c]}}
"""
    places = {problem.where for problem in read_fleet(text, "fleet.yaml", folder="/srv").problems}
    assert places == {
        "models[0].replicas",
        "models[1].contxt",
        "models[2].tsk",
        "gateway.prot",
        "gateway.fallbacks.a[0]",
    }


def test_mistakes_are_all_reported_at_once() -> None:
    models = "[{source: tiny, replicas: -1}, {source: builtin:tiny, split: fast}]"
    text = f"{{name: A, gateway: {{prot: 1, tls: x}}, models: {models}}}"
    with pytest.raises(UserInputError) as caught:
        load_fleet(text, "fleet.yaml", folder="/srv")
    places = {problem.where for problem in caught.value.problems}
    assert places == {
        "name", "gateway.prot", "gateway.tls", "models[0].source", "models[0].replicas", "models[1].split",
    }  # fmt: skip
    assert "6 problems" in str(caught.value)


def places_of(text: str) -> list[str]:
    return sorted(problem.where for problem in read_fleet(text, "fleet.yaml", folder="/srv").problems)


# a section whose values disagree, with a mistake in another one of its values; the places of both
DISAGREEMENTS = {
    "a draft without its model": (
        "models: [{source: builtin:tiny, speculative: {method: draft, tokens: 0, lookup: 3}}]",
        ["models[0].speculative", "models[0].speculative", "models[0].speculative.tokens"],
    ),
    "replicas that follow nothing": (
        "models: [{source: builtin:tiny, replicas: {max: 4, min: 9}}]",
        ["models[0].replicas", "models[0].replicas.max"],
    ),
    "too many ranks": (
        "models: [{source: builtin:tiny, split: {tensor: 64, pipeline: 64, layers: [1, 2]}}]",
        ["models[0].split", "models[0].split.layers"],
    ),
    "an administrator without a secret": (
        "{models: [builtin:tiny], gateway: {admin: [{name: '?'}]}}",
        ["gateway.admin[0]", "gateway.admin[0].name"],
    ),
    "two addresses of Redis": (
        "{models: [builtin:tiny], gateway: {redis: {url: 'http://x', url_env: '1'}}}",
        ["gateway.redis", "gateway.redis.url", "gateway.redis.url_env"],
    ),
    "two secrets": (
        "{models: [builtin:tiny], gateway: {sign_in: {issuer: x, client_secret_env: A, client_secret_file: /a,"
        " client_id: c, console_urls: ['https://c'], groups: [{group: ''}]}}}",
        ["gateway.sign_in", "gateway.sign_in.groups[0]", "gateway.sign_in.groups[0].group", "gateway.sign_in.issuer"],
    ),
    "a node by name and by labels": (
        "{models: [builtin:tiny], weights: {prewarm: [{node: 'a b', labels: {zone: 'a b'}}]}}",
        ["weights.prewarm[0]", "weights.prewarm[0].labels", "weights.prewarm[0].node"],
    ),
    "several labels": (
        "models: [{source: builtin:tiny, placement: {labels: {'a b': c, d: 'e f'}}}]",
        ["models[0].placement.labels"] * 2,
    ),
    "several variables": (
        "models: [{source: builtin:tiny, engine: {env: {'a b': c, VLLM_PORT: d, E: 1}}}]",
        ["models[0].engine.env"] * 3,
    ),
}


@pytest.mark.parametrize(("text", "places"), DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_values_that_disagree_are_reported_beside_other_mistakes(text: str, places: list[str]) -> None:
    assert places_of(text) == places


def test_a_field_that_does_not_exist_may_be_meant_as_the_one_that_is_missing() -> None:
    assert places_of("{models: [builtin:tiny], gateway: {redis: {link: redis://a}}}") == ["gateway.redis.link"]


def test_mistakes_of_models_behind_an_external_one_stand_at_their_places() -> None:
    text = """
models:
- {name: other, engine: {kind: external, urls: [https://api.example.com/v1], proxy: x}}
- {source: builtin:tiny, replicas: -1}
- {source: builtin:tiny, name: second}
"""
    reading = read_fleet(text, "fleet.yaml", folder="/srv")
    assert places_of(text) == ["models[0]", "models[0].engine.proxy", "models[1].replicas"]
    assert reading.positions == (2,)
    assert [model.position for model in reading.others] == [1]


@pytest.mark.parametrize("key", ["external[3]", "models[3]"])
def test_a_key_that_looks_like_a_place_is_a_key(key: str) -> None:
    assert places_of(f"{{models: [builtin:tiny], gateway: {{fallbacks: {{'{key}': 5}}}}}}") == [
        f'gateway.fallbacks["{key}"]'
    ]


def test_a_large_limit_is_written_as_the_file_takes_it() -> None:
    (problem,) = read_fleet("models: [{source: builtin:tiny, context: 200000000}]", "x").problems
    assert problem.hint == "write 100000000"
    assert problem.what == "200000000 is more than the limit, 100000000"


@pytest.mark.parametrize(
    "section",
    [
        "gateway: {redis: {url: 'redis://:word@[::1'}}",
        "gateway: {cors: {origins: ['http://word@[::1']}}",
        "weights: {endpoint: 'http://word@[::1'}",
        "weights: {endpoint: 'http://minio:word'}",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(section: str) -> None:
    (problem,) = read_fleet(f"models: [builtin:tiny]\n{section}", "x").problems
    assert problem.what == "this is not an address"
    assert "://" in problem.hint


def test_mistake_in_a_whole_file_that_is_one_source_points_at_the_file() -> None:
    with pytest.raises(UserInputError) as caught:
        load_fleet("builtin:Tiny", "fleet.yaml", folder="/srv")
    assert [problem.where for problem in caught.value.problems] == [""]


@pytest.mark.parametrize(
    "model",
    [
        {"source": "builtin:tiny", "engine": {"args": ["a\udcff"]}},
        {"source": "builtin:tiny", "engine": {"environment": "/opt/\udcff"}},
        {"source": "/models\udcff/qwen"},
    ],
    ids=["argument", "environment", "source"],
)
def test_bytes_of_a_command_line_that_are_no_text_are_refused(model: object) -> None:
    with pytest.raises(UserInputError, match="has a character that") as caught:
        fleet_from({"models": [model]}, "x", folder="/")
    str(caught.value).encode()


@pytest.mark.parametrize("data", [{"models": ["caf\udce9"]}, {"models": ["builtin:tiny"], "\udce9": 1}])
def test_a_relative_path_or_a_key_that_is_no_text_is_refused_in_text(data: object) -> None:
    with pytest.raises(UserInputError) as caught:
        fleet_from(data, "x", folder="/")
    str(caught.value).encode()


WORDS = st.sampled_from(
    ["models", "name", "source", "builtin:tiny", "engine", "kind", "vllm", "fake", "split", "tensor", "auto", "gateway",
     "host", "auth", "none", "resources", "memory", "4GiB", "placement", "labels", "replicas", "hf:a/b", "/m", "args"]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=4)
)


def fleet_or_refusal(load: object, *args: object, **kwargs: object) -> None:
    assert callable(load)
    try:
        result = load(*args, **kwargs)
    except UserInputError as error:
        assert error.problems
        assert all(problem.what and problem.hint for problem in error.problems)
    else:
        assert isinstance(result, Fleet)


@given(VALUES)
def test_any_values_are_a_fleet_or_a_refusal(data: object) -> None:
    fleet_or_refusal(fleet_from, data, "x", folder="/")


@given(
    st.fixed_dictionaries({"models": st.lists(st.dictionaries(WORDS, VALUES) | WORDS)}, optional={"gateway": VALUES})
)
def test_anything_shaped_like_a_fleet_is_one_or_a_refusal(data: object) -> None:
    fleet_or_refusal(fleet_from, data, "x", folder="/")


@given(st.text())
def test_any_text_is_a_fleet_or_a_refusal(text: str) -> None:
    fleet_or_refusal(load_fleet, text, "x")


@given(st.text(alphabet=" \n\t-:{}[]&*!|>'\"%@`#,?ab1<~\0\ud800", max_size=60))
def test_any_punctuation_is_a_fleet_or_a_refusal(text: str) -> None:
    fleet_or_refusal(load_fleet, text, "x")
