"""What to write instead of a field that a section does not have."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from longboat.spec.checks.wording import near
from longboat.spec.types import adapters, external, fleet, gateway, media, replicas, sign_in, speculation, weights

__all__ = ("SECTIONS", "fields_of", "hint_for", "limits_of")

SECTIONS: Mapping[tuple[str, ...], type[BaseModel]] = {
    (): fleet.Fleet,
    ("models",): fleet.ModelSpec,
    ("models", "engine"): fleet.EngineSpec,
    ("models", "engine", "options"): fleet.OptionsSpec,
    ("models", "split"): fleet.SplitSpec,
    ("models", "load"): fleet.LoadSpec,
    ("models", "resources"): fleet.ResourcesSpec,
    ("models", "placement"): fleet.PlacementSpec,
    ("models", "update"): fleet.UpdateSpec,
    ("models", "replicas"): replicas.ReplicasSpec,
    ("models", "replicas", "slo"): replicas.ObjectiveSpec,
    ("models", "replicas", "schedule"): replicas.ScheduleSpec,
    ("models", "media"): media.MediaSpec,
    ("models", "speculative"): speculation.SpeculativeSpec,
    ("models", "adapters"): adapters.AdaptersSpec,
    ("models", "adapters", "entries"): adapters.AdapterSpec,
    ("external",): external.ExternalModelSpec,
    ("external", "engine"): external.ExternalSpec,
    ("external", "engine", "limits"): external.SpendingSpec,
    ("external", "engine", "price"): external.PriceSpec,
    ("gateway",): gateway.GatewaySpec,
    ("gateway", "tls"): gateway.TlsSpec,
    ("gateway", "tenants"): gateway.TenantSpec,
    ("gateway", "admin"): gateway.AdminSpec,
    ("gateway", "sign_in"): sign_in.SignInSpec,
    ("gateway", "sign_in", "groups"): sign_in.GroupSpec,
    ("gateway", "cors"): gateway.CorsSpec,
    ("gateway", "aliases"): gateway.AliasSpec,
    ("gateway", "aliases", "pools"): gateway.PoolSpec,
    ("gateway", "overflow"): gateway.OverflowSpec,
    ("gateway", "prices"): external.PriceSpec,
    ("gateway", "rules"): gateway.RuleSpec,
    ("gateway", "queue"): gateway.QueueSpec,
    ("gateway", "queue", "preemption"): gateway.PreemptionSpec,
    ("gateway", "routing"): gateway.RoutingSpec,
    ("gateway", "resume"): gateway.ResumeSpec,
    ("gateway", "logs"): gateway.LogsSpec,
    ("gateway", "tracing"): gateway.TracingSpec,
    ("gateway", "redis"): gateway.RedisSpec,
    ("weights",): weights.WeightsSpec,
    ("weights", "limits"): weights.WeightLimitsSpec,
    ("weights", "prewarm"): weights.PrewarmSpec,
}

MAPS = (("gateway", "overflow"), ("gateway", "prices"))
"""Sections whose entries stand under names that the user chooses; all entries have the same fields."""

NOT_WRITTEN: Mapping[tuple[str, ...], frozenset[str]] = {(): frozenset({"external"})}
"""Fields that only the code fills: in the file, external models stand under models."""

ADDRESSES = ("api_base", "base_url", "endpoint", "upstream", "upstreams", "url")

# Names from other tools' files and command lines.
SYNONYMS: Mapping[str, str] = {
    "api_version": "apiVersion",
    "environment_path": "engine.environment",
    "data_parallel_size": "split.data",
    "dp": "split.data",
    "enable_expert_parallel": "split.expert",
    "ep": "split.expert",
    "expert_parallel": "split.expert",
    "extra_args": "engine.args",
    "gpu": "resources.gpus",
    "instances": "replicas",
    "max_context": "context",
    "max_model_len": "context",
    "max_tokens": "context",
    "model": "source",
    "model_path": "source",
    "node_selector": "placement.labels",
    "num_replicas": "replicas",
    "parallel": "split",
    "path": "source",
    "pipeline_parallel_size": "split.pipeline",
    "pp": "split.pipeline",
    "tensor_parallel_size": "split.tensor",
    "tp": "split.tensor",
    "concurrency": "load.users",
    "users": "load.users",
    "prompt": "load.prompt_tokens",
    "output": "load.output_tokens",
    "cert": "gateway.tls.certificate",
    "rate_limit": "gateway.tenants.requests_per_minute",
    "rpm": "gateway.tenants.requests_per_minute",
    "rpm_limit": "gateway.tenants.requests_per_minute",
    "tpm": "gateway.tenants.tokens_per_minute",
    "tpm_limit": "gateway.tenants.tokens_per_minute",
    "max_parallel_requests": "gateway.tenants.concurrent_requests",
    "workers": "gateway.processes",
}

# What is done otherwise, in whichever section it is written.
ELSEWHERE: Mapping[str, str] = {
    "api_key": "write auth: keys under gateway; longboat keys create --tenant NAME makes a key",
    "api_keys": "write auth: keys under gateway; longboat keys create --tenant NAME makes a key",
    "keys": "write auth: keys under gateway; longboat keys create --tenant NAME makes a key",
    "canary": "write an alias with pools under gateway: aliases: [{name: chat, pools: [{model: a, weight: 9}, ...]}]",
    "password": "write the whole URL into a file: url_file: /etc/longboat/redis-url",
    "quotas": "write them for each tenant under gateway: tenants: [{name: a, requests_per_minute: 60}]",
}

RUNNING = "for an engine that runs already: longboat gateway run --upstream MODEL=http://HOST:PORT"

SCALED = "write replicas: {min: 1, max: 4, target_ongoing_requests: 16}"

KEY = "write api_key_env: NAME, the nodes' environment variable with the key, or api_key_file: /etc/longboat/key"

OF_CLIENT = "write client_secret_env: NAME, the nodes' environment variable with the secret"

# The same for words that mean something else in other sections.
HERE: Mapping[tuple[tuple[str, ...], str], str] = {
    **{((*section,), word): RUNNING for section in ((), ("models",), ("models", "engine")) for word in ADDRESSES},
    ((), "upstreams"): "a file with upstreams is for a gateway alone: longboat gateway run --config FILE",
    **{(("models",), word): SCALED for word in ("autoscaling", "autoscaling_config", "min_replicas", "max_replicas")},
    **{(("models",), word): f"{SCALED}, or slo: {{ttft_ms: 1000}} in it" for word in ("schedule", "slo")},
    **{((), word): f"{SCALED} in a model" for word in ("autoscaling", "slo")},
    **{(("models", "replicas"), f"{word}_replicas"): f"write {word}" for word in ("min", "max", "initial")},
    (("models", "replicas", "schedule"), "duration"): "write for: 10h",
    (("gateway", "tracing"), "url"): "write endpoint",
    **{(("external", "engine"), word): KEY for word in ("api_key", "key", "token", "password")},
    **{(("external", "engine"), word): "write urls: [https://api.example.com/v1]" for word in ADDRESSES},
    **{(("gateway", "sign_in"), word): OF_CLIENT for word in ("client_secret", "secret", "secret_env")},
    **{(("gateway", "sign_in"), word): "write issuer" for word in ("discovery_url", "issuer_url", "provider")},
    **{(("gateway", "sign_in"), word): "write console_urls" for word in ("redirect_uri", "redirect_url", "base_url")},
    **{(("gateway",), word): "write sign_in" for word in ("oidc", "oauth", "oauth2", "sso", "openid")},
    (("external",), "source"): "leave source out: urls of the engine say where the model is",
}

# Fields of several sections: where else they stand says nothing about what was meant.
VAGUE = frozenset(
    {"enabled", "endpoint", "fields", "headers", "keep", "key", "model", "name", "role", "tags", "to", "url"}
)

# Settings of vLLM that people write beside the model's own.
VLLM_SETTINGS = frozenset(
    {
        "block_size", "chat_template", "cpu_offload_gb", "dtype", "gpu_memory_utilization", "hf_overrides",
        "kv_cache_dtype", "limit_mm_per_prompt", "max_num_batched_tokens", "max_num_seqs", "quantization",
        "reasoning_parser", "revision", "seed", "speculative_config", "tokenizer", "tool_call_parser",
    }
)  # fmt: skip
VLLM_SWITCHES = frozenset({"enable_auto_tool_choice", "enable_prefix_caching", "enforce_eager", "trust_remote_code"})


def fields_of(section: tuple[str, ...]) -> list[str]:
    """Return the names that may stand in a section, as written in the file."""
    model = SECTIONS.get(section)
    names = [info.alias or name for name, info in model.model_fields.items()] if model else []
    return [name for name in names if name not in NOT_WRITTEN.get(section, ())]


def limits_of(section: tuple[str, ...], field: str) -> tuple[float | None, float | None]:
    """Return the least and the most that a field of a section takes; None where there is no such limit."""
    model = SECTIONS.get(section)
    info = model.model_fields.get(field) if model else None
    bounds = info.metadata if info else ()
    least = next((bound.ge for bound in bounds if hasattr(bound, "ge")), None)
    most = next((bound.le for bound in bounds if hasattr(bound, "le")), None)
    return least, most


def hint_for(section: tuple[str, ...], word: str) -> str:
    """Return what to write instead of ``word``, which is not a field of ``section``."""
    if section[:-1] in MAPS:
        section = section[:-1]
    known = fields_of(section)
    if hint := HERE.get((section, word)) or ELSEWHERE.get(word):
        return hint
    if meant := _synonym(section, word, known) or near(word, known):
        return f"write {meant}"
    if section[:1] == ("models",) and (hint := _argument(word)):
        return hint
    owners = [other for other in SECTIONS if other != section and word in fields_of(other)]
    if owners and word not in VAGUE:
        owner = ".".join(owners[0]).replace("models", "models[...]") or "the top of the file"
        return f"{word} stands under {owner}"
    return f"known here: {', '.join(known)}"


def _synonym(section: tuple[str, ...], word: str, known: list[str]) -> str:
    """Return the field, from this section on, that other tools call ``word``; empty where there is none."""
    meant = SYNONYMS.get(word, "")
    owner, _, last = meant.rpartition(".")
    if meant.partition(".")[0] in known:
        return meant
    return last if owner in (".".join(section[1:]), ".".join(section)) and last in known else ""


def _argument(word: str) -> str:
    """Return how a setting of vLLM is given; empty for other words."""
    name = word.replace("-", "_")
    flag = f"--{name.replace('_', '-')}"
    if name in VLLM_SWITCHES:
        return f"write it as an argument of vLLM: engine: {{args: [{flag}]}}"
    return f'write it as an argument of vLLM: engine: {{args: [{flag}, "VALUE"]}}' if name in VLLM_SETTINGS else ""
