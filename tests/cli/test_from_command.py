"""Fleet files that ``longboat init --from`` makes of commands of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from longboat.cli.app import app
from longboat.cli.check.from_command import fleet_of_command
from longboat.core.errors import UserInputError

IMAGE = "docker run --runtime nvidia --gpus all -v /disk/hub:/hub"
TWO_CARDS = {"name": "Qwen3-32B", "source": "hf:Qwen/Qwen3-32B", "split": {"tensor": 2}}


def made(command: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the model and the gateway of the file, and its comments."""
    text = fleet_of_command(command, folder="/here", **{"env": {}, **more})
    document = yaml.safe_load(text)
    (model,) = document["models"]
    return model, document["gateway"], "\n".join(line for line in text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2",
        "# a script\nvllm serve \\\n  Qwen/Qwen3-32B \\\n  -tp=2 > log.txt 2>&1 &\n",
        "python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B --tensor_parallel_size 2",
        "nohup vllm serve Qwen/Qwen3-32B -tp 2 --no-enable-expert-parallel",
        f"{IMAGE} -p 8000:8000 --ipc=host vllm/vllm-openai:v0.32.0 --model Qwen/Qwen3-32B -tp 2",
        f"sudo {IMAGE} vllm/vllm-openai --model=Qwen/Qwen3-32B --tensor-parallel-size=2",
    ],
)
def test_each_way_of_starting_gives_the_same_model(command: str) -> None:
    model, gateway, _ = made(command)
    assert model == TWO_CARDS
    assert gateway == {
        "host": "127.0.0.1",
        "port": 8000,
        "aliases": [{"name": "Qwen/Qwen3-32B", "model": "Qwen3-32B"}],
    }


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        ("--max-model-len 32k --seed=7", {"context": 32_000, "engine": {"args": ["--seed=7"]}}),
        ("--max-model-len auto", {"engine": {"args": ["--max-model-len", "auto"]}}),
        ("-ep -dp 2 -pp 4", {"split": {"pipeline": 4, "data": 2, "expert": True}}),
        ("--convert embed --runner pooling", {"task": "embed"}),
        (
            "--enable-lora --max-loras 4 --lora-modules a=/adapters/a b=/adapters/b",
            {
                "adapters": {
                    "slots": 4,
                    "entries": [{"name": "a", "source": "/adapters/a"}, {"name": "b", "source": "/adapters/b"}],
                }
            },
        ),
        (
            """--speculative-config '{"method": "eagle3", "model": "o/head", "num_speculative_tokens": 4}'""",
            {"speculative": {"method": "eagle3", "model": "hf:o/head", "tokens": 4}},
        ),
        (
            """--no-enable-prefix-caching --override-generation-config '{"temperature": 0.5}' -q fp8""",
            {
                "engine": {
                    "args": [
                        "--no-enable-prefix-caching",
                        "--override-generation-config",
                        '{"temperature": 0.5}',
                        "-q",
                        "fp8",
                    ]
                }
            },
        ),
    ],
)
def test_each_flag_becomes_its_field_or_stays_a_flag(args: str, fields: dict[str, Any]) -> None:
    assert made(f"vllm serve /models/m --served-model-name m {args}")[0] == {
        "name": "m",
        "source": "/models/m",
        **fields,
    }


def test_addresses_and_names_become_the_gateways() -> None:
    names = "--served-model-name org/chat chat gpt-4o"
    model, gateway, comments = made(f"vllm serve /m {names} --host 0.0.0.0 --port 9000")
    assert model == {"name": "chat", "source": "/m"}
    assert gateway["aliases"] == [{"name": "org/chat", "model": "chat"}, {"name": "gpt-4o", "model": "chat"}]
    assert (gateway["host"], gateway["port"], gateway["auth"]) == ("0.0.0.0", 9000, "keys")
    assert "host 0.0.0.0 without keys: write auth: none" in comments
    given = made("vllm serve /m --host 0.0.0.0 --port 9000", host="127.0.0.1", port=8001)[1]
    assert (given["host"], given["port"]) == ("127.0.0.1", 8001)


def test_the_address_outside_a_container_counts() -> None:
    gateway = made(f"{IMAGE} -p 10.0.0.1:80:8000 vllm/vllm-openai:v0.32.0 --model /m --port 8000")[1]
    assert (gateway["host"], gateway["port"]) == ("10.0.0.1", 80)


def test_no_secret_of_the_command_is_in_the_file() -> None:
    command = (
        "HF_TOKEN=hf_s3cret VLLM_API_KEY=s3cret OMP_NUM_THREADS=4 vllm serve /m --api-key s3cret --hf-token=s3cret"
    )
    text = fleet_of_command(command, env={"HF_TOKEN": "x"}, folder="/here")
    assert "s3cret" not in text
    assert yaml.safe_load(text)["models"][0]["engine"]["env"] == {"OMP_NUM_THREADS": "4", "HF_TOKEN": "${HF_TOKEN}"}
    assert yaml.safe_load(text)["gateway"]["auth"] == "keys"
    assert "s3cret" not in fleet_of_command(f"{IMAGE} -eHF_TOKEN=s3cret vllm/vllm-openai /m", env={}, folder="/here")
    model, _, comments = made('docker run --env "HF_TOKEN=$HF_TOKEN" -e A=1 vllm/vllm-openai --model /m')
    assert model["engine"] == {"env": {"A": "1"}}
    assert "left out: HF_TOKEN: export it" in comments


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ("--config serve.yaml", "left out: --config: write each setting as a separate argument"),
        ("--ssl-keyfile k.pem", "left out: --ssl-keyfile: leave it out: the gateway speaks plain HTTP to engines"),
        ("-dpr 1", "left out: -dpr: set the model's split.data instead"),
        ("--enable-lora --lora-modules a=o/lora", "left out: --lora-modules a=o/lora: an adapter is a folder"),
        ("""--speculative-config '{"method": "medusa"}'""", "the methods are ngram"),
    ],
)
def test_what_is_left_out_is_said_with_the_reason(args: str, told: str) -> None:
    assert told in made(f"vllm serve /m {args}")[2]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("ollama run qwen3", "no command that starts the server"),
        ("llama-server -hf org/m-GGUF:Q8_0", "chooses a file of org/m-GGUF for Q8_0"),
        ("text-generation-launcher --port 80", "names no model"),
        ("services: {web: {image: nginx}}", "services of engines in the compose file: none"),
        ("services: {a: {image: vllm/vllm-openai}, b: {image: vllm/vllm-openai}}", "compose file: a, b"),
        ("vllm serve --port 8000", "names no model"),
        ("vllm serve $MODEL", "a variable of a shell: $MODEL"),
        ("vllm serve 'm", "cannot be read"),
        ("", "no command that starts the server"),
    ],
)
def test_commands_without_a_fleet_file_are_refused(command: str, told: str) -> None:
    with pytest.raises(UserInputError, match=r".*") as raised:
        made(command)
    assert told in str(raised.value)


SGLANG = {"name": "Qwen3-8B", "source": "hf:Qwen/Qwen3-8B", "split": {"tensor": 2}, "context": 8192}
SGLANG |= {"engine": {"kind": "sglang", "args": ["--mem-fraction-static", "0.8"]}}
SGLANG_ARGS = "--model-path Qwen/Qwen3-8B --tp 2 --context-length 8192 --mem-fraction-static 0.8"
LLAMA = {"name": "chat", "source": "/models/m.gguf", "context": 4096}
LLAMA |= {"engine": {"kind": "llama.cpp", "args": ["--parallel", "2"]}}
TGI = {"name": "Qwen3-8B", "source": "hf:Qwen/Qwen3-8B", "split": {"tensor": 2}, "context": 4096}
TGI |= {"engine": {"kind": "tgi", "args": ["--max-input-tokens", "3000"]}}
COMPOSE = """
services:
  web: {image: nginx}
  engine:
    image: lmsysorg/sglang:v0.5.6
    command: python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --host 0.0.0.0 --port 30000
      --context-length 8192 --mem-fraction-static 0.8
    environment: {HF_TOKEN: hf_s3cret}
    ports: ["127.0.0.1:8001:30000"]
    volumes: ["/disk/hub:/hub/.cache/huggingface"]
    ipc: host
"""


@pytest.mark.parametrize(
    ("command", "model", "port"),
    [
        (f"python -m sglang.launch_server {SGLANG_ARGS}", SGLANG, 30000),
        (f"sglang serve {SGLANG_ARGS} --port 8001", SGLANG, 8001),
        (f"{IMAGE} -p 8001:30000 lmsysorg/sglang:latest python3 -m sglang.launch_server {SGLANG_ARGS}", SGLANG, 8001),
        (f"{IMAGE} -p 8001:30000 lmsysorg/sglang sglang serve {SGLANG_ARGS}", SGLANG, 8001),
        (COMPOSE, SGLANG, 8001),
        ("llama-server -m /models/m.gguf -a chat -c 8192 --parallel 2", LLAMA, 8080),
        (f"{IMAGE} -p 8001:8080 ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/m.gguf -a chat -c 8192 --parallel 2",
         LLAMA, 8001),
        (f"{IMAGE} -e LLAMA_ARG_MODEL=/models/m.gguf -e LLAMA_ARG_CTX_SIZE=8192 -eLLAMA_ARG_N_PARALLEL=2 -p 8001:8080 "
         "ghcr.io/ggml-org/llama.cpp:server --alias chat", LLAMA, 8001),
        ("text-generation-launcher --model-id Qwen/Qwen3-8B --num-shard 2 --max-total-tokens 4096 "
         "--max-input-tokens 3000", TGI, 3000),
        (f"{IMAGE} -e MODEL_ID=Qwen/Qwen3-8B -e NUM_SHARD=2 -p 8001:80 "
         "ghcr.io/huggingface/text-generation-inference --max-total-tokens 4096 --max-input-tokens 3000", TGI, 8001),
    ],
)  # fmt: skip
def test_commands_of_each_engine_give_its_model(command: str, model: dict[str, Any], port: int) -> None:
    found, gateway, comments = made(command)
    assert found == model
    assert gateway["port"] == port
    assert "s3cret" not in comments


def test_what_a_container_has_beside_its_engine_is_named_without_values() -> None:
    comments = made(COMPOSE)[2]
    assert "left out: --volumes --ipc: engines are processes of the nodes" in comments
    assert "left out: lmsysorg/sglang:v0.5.6: longboat engines install sglang" in comments
    assert "left out: HF_TOKEN: export it" in comments


def test_a_file_of_the_hub_is_the_source_and_tgi_keeps_its_name() -> None:
    model, gateway, _ = made("llama-server -hf org/m-GGUF -hff m-Q8_0.gguf")
    assert model == {"name": "m-Q8_0", "source": "hf:org/m-GGUF:m-Q8_0.gguf", "engine": {"kind": "llama.cpp"}}
    assert "aliases" not in gateway
    names = [alias["name"] for alias in made("text-generation-launcher --model-id o/m")[1]["aliases"]]
    assert names == ["o/m", "tgi"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sglang serve --model-path /m --enable-lora --lora-paths a=/a", "--lora-paths: write adapters: in the model"),
        ("sglang serve --model-path /m --some-secret-key s3cret", "--some-secret-key: a secret is not copied"),
        ("llama-server -m /m.gguf --api-key s3cret", "--api-key: longboat keys create"),
        ("llama-server -m /m.gguf --draft 4", "--draft: engine.args of llama.cpp take no such flag here"),
        ("API_KEY=s3cret text-generation-launcher --model-id /m", "--api-key: longboat keys create"),
    ],
)
def test_what_other_engines_commands_have_is_left_out_with_the_reason(command: str, told: str) -> None:
    text = fleet_of_command(command, env={}, folder="/here")
    assert told in text
    assert "s3cret" not in text


@pytest.mark.parametrize("command", [f"sglang serve {SGLANG_ARGS}", "llama-server -m /m.gguf -c 512", COMPOSE])
def test_init_writes_sound_files_for_other_engines(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["init", "--from", "-"], input=command)
    assert done.exit_code == 0, done.output
    kind = yaml.safe_load((tmp_path / "fleet.yaml").read_text())["models"][0]["engine"]["kind"]
    assert f"longboat engines install {kind}" in done.output


@pytest.mark.parametrize("given", ["words", "file", "stdin"])
def test_init_writes_a_file_that_check_accepts(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 8192 --api-key k --gpu-memory-utilization 0.9"
    (tmp_path / "serve.sh").write_text(command)
    words = {"words": command, "file": "serve.sh", "stdin": "-"}[given]
    done = CliRunner().invoke(app, ["init", "--from", words], input=command)
    assert done.exit_code == 0, done.output
    assert "left out: --api-key" in done.output
    checked = CliRunner().invoke(app, ["check", "fleet.yaml", "--on", "2xH100"])
    assert checked.exit_code == 0, checked.output


def test_init_from_a_command_takes_no_other_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["init", "--from", "vllm serve /m", "--model", "/n"])
    assert isinstance(done.exception, UserInputError)
    assert not list(tmp_path.iterdir())
