"""Makes what a seed draws depend on its own request alone.

SGLang draws from all tokens in their order, or from tokens sorted by probability, depending on whether any request of
the batch limits them (``top_k``, ``top_p``): the same seed then draws other tokens beside other requests. ``min_p``
with seeds ends SGLang's scheduler. Here seeded batches are always drawn in one way, from sorted tokens, also where a
request asks which tokens it was drawn from (``return_sampling_mask``). Can be dropped when SGLang does so. Seeds have
an effect with ``--enable-deterministic-inference`` only.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("install", "limited")

_MARK = "_longboat_seeds"


def install() -> None:
    """Wrap the drawing of tokens. Raises UnexpectedShapeError."""
    from sglang.srt.layers import sampler

    draw = sampler.Sampler._sample_from_probs
    if hasattr(draw, _MARK):
        return
    names = tuple(inspect.signature(draw).parameters)
    expect(
        names == ("self", "probs", "sampling_info", "positions", "simple_sampling_case"), "tokens are drawn elsewhere"
    )
    parameters = tuple(inspect.signature(sampler.multinomial_with_seed).parameters)
    expect(parameters == ("logprobs", "seed", "positions"), "seeds are used in another way")
    fields = sampler._SamplingMaskCapture._fields
    expect(fields == ("weights", "token_ids", "selected_weight", "batch_rows"), "a sampling mask has other fields")
    sampler.Sampler._sample_from_probs = _drawing(draw, sampler.multinomial_with_seed, sampler._SamplingMaskCapture)


def _drawing(draw: Any, draw_seeded: Any, capture: Any) -> Any:
    """Wrap ``Sampler._sample_from_probs`` so that it draws seeded tokens from sorted ones."""

    @functools.wraps(draw)
    def sample_from_probs(sampler: Any, probs: Any, info: Any, positions: Any, is_simple: bool) -> Any:
        if info.sampling_seed is None:
            return draw(sampler, probs, info, positions, is_simple)
        kept, tokens = limited(probs, info.top_ks, info.top_ps, info.min_ps)
        drawn = draw_seeded(kept.double().log(), info.sampling_seed, positions)
        rows, mask = info.sampling_mask_batch_indices, None
        if rows is not None:
            weights, own = kept.index_select(0, rows), tokens.index_select(0, rows).to(_token_type())
            mask = capture(weights, own, weights.gather(1, drawn.index_select(0, rows)).view(-1), rows)
        return tokens.gather(1, drawn).view(-1).to(_token_type()), mask

    setattr(sample_from_probs, _MARK, True)
    return sample_from_probs


def limited(probs: Any, top_ks: Any, top_ps: Any, min_ps: Any) -> tuple[Any, Any]:
    """Return probabilities in falling order, 0 for tokens that a limit of their row excludes, and their tokens."""
    import torch

    ordered, tokens = probs.sort(dim=-1, descending=True, stable=True)
    before = torch.cumsum(ordered, dim=-1) - ordered
    places = torch.arange(ordered.shape[-1], device=ordered.device)[None, :]
    excluded = (places >= top_ks.view(-1, 1)) | (before > top_ps.view(-1, 1))
    excluded |= ordered < ordered[:, :1] * min_ps.view(-1, 1)
    return ordered.masked_fill(excluded, 0.0), tokens


def _token_type() -> Any:
    import torch

    return torch.int32
