"""The settings by which vLLM loads media only as the fleet file allows."""

from __future__ import annotations

import dataclasses
import json

from longboat.core.media import MediaRules

__all__ = ("media_arguments", "media_env")

_NOWHERE = "nowhere.invalid"
"""An empty list of domains would allow all."""


def media_arguments(rules: MediaRules) -> list[str]:
    """Return the arguments: vLLM's own check of exact hosts, which stays where the plugin is switched off."""
    return ["--allowed-media-domains", *(rules.domains or (_NOWHERE,))]


def media_env(rules: MediaRules) -> dict[str, str]:
    """Return the variables: the plugin's connector with its rules, and vLLM's own limits."""
    told = dataclasses.asdict(rules)
    del told["in_texts"]  # vLLM loads none of those, and an older plugin does not know the name
    return {
        "VLLM_MEDIA_CONNECTOR": "longboat",
        "LONGBOAT_MEDIA": json.dumps(told),
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": str(-(-rules.max_bytes // 2**20)),
        "VLLM_MAX_IMAGE_PIXELS": str(rules.max_pixels),
    }
