"""Lets data parallel ranks on CPU exchange the tokens of their experts, for which vLLM has no code on CPU.

Ranks gather all tokens before the experts of a layer, and add up and divide the results behind them. The ranks of a
gang may have unlike numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("mend_expert_groups_on_cpu",)

_MENDED = "_longboat_mended"


def mend_expert_groups_on_cpu() -> None:
    """Give the CPU communicator the two collectives that it lacks. Raises UnexpectedShapeError where it has them.

    Can be dropped when ``CpuCommunicator`` has ``all_gatherv`` and ``reduce_scatterv`` itself.
    """
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    if hasattr(getattr(CpuCommunicator, "all_gatherv", None), _MENDED):
        return
    own = {"all_gatherv", "reduce_scatterv"} & set(vars(CpuCommunicator))
    expect(not own, f"CpuCommunicator has {', '.join(sorted(own))} of its own")
    setattr(_all_gatherv, _MENDED, True)
    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv


def _all_gatherv(communicator: Any, tensors: Any, dim: int = 0, sizes: Sequence[int] | None = None) -> Any:
    """Return the rows of all ranks, in the order of the ranks. tensors: one tensor, or a list of them."""
    if isinstance(tensors, list):
        return [_gathered(communicator, tensor, dim, sizes) for tensor in tensors]
    return _gathered(communicator, tensors, dim, sizes)


def _gathered(communicator: Any, tensor: Any, dim: int, sizes: Sequence[int] | None) -> Any:
    """Gather one tensor: Gloo moves equal parts only, so shorter ones are padded and cut again."""
    import torch

    if dim != 0:
        raise NotImplementedError(f"rows are gathered along dimension 0, not {dim}")
    counts = sizes or [tensor.shape[0]] * communicator.world_size
    padded = tensor.new_zeros((max(counts), *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    parts = [torch.empty_like(padded) for _ in counts]
    torch.distributed.all_gather(parts, padded, group=communicator.device_group)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _reduce_scatterv(communicator: Any, tensor: Any, dim: int = 0, sizes: Sequence[int] | None = None) -> Any:
    """Return this rank's rows of the sum over all ranks."""
    import torch

    if dim != 0:
        raise NotImplementedError(f"rows are divided along dimension 0, not {dim}")
    rank, world_size = communicator.rank_in_group, communicator.world_size
    counts = list(sizes) if sizes else [tensor.shape[0] // world_size] * world_size
    total = tensor.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(total, group=communicator.device_group)
    start = sum(counts[:rank])
    return total[start : start + counts[rank]].clone()
