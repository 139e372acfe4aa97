"""How far kernels stay behind the hardware's peak, relative to 16-bit kernels of the H100 generation.

The figures sum up kernel tables of ai-dynamo/aiconfigurator 0.12 (Apache-2.0; vLLM 0.24 and SGLang 0.5.14 on H100,
H200, B200 and B300). Calibration multiplies them by factors of its own; here is what those cannot tell: that a format
reaches another share on another generation, and how an expert's slice on a rank changes what reading it costs.
"""

from __future__ import annotations

from longboat.planner.predict.machine import Machine

__all__ = ("expert_read_share", "multiply_share")

# Shares of the dense peak that large multiplications reach, by native number format of the hardware (its generation)
# and by bits of an operand: medians over m, n, k of 4,096 and more.
MULTIPLY_SHARES = {
    ("fp8", 16): 0.76,
    ("fp8", 8): 0.58,
    ("fp4", 16): 0.66,
    ("fp4", 8): 0.50,
    ("fp4", 4): 0.44,
}
REFERENCE_SHARE = 0.76
# Four-bit multiplications reached 3.9 and 4.2 PFLOP/s on B200 and B300, whose peaks are 9 and 14.
MOST_OF_FOUR_BITS = 2.0  # times the peak with 8 bits

# Reading experts gains less than the memory's bandwidth: in the tables H200 reads them 1.14 times as fast as H100 with
# 1.43 times the bandwidth, B200 1.2 (SGLang) to 1.8 times (vLLM) with 2.4 times, which are exponents of 0.6 to 0.2 for
# the loss. Served models lose less than kernels alone; of 0.5 and 0.2, the least suited the measured rows better.
REFERENCE_BANDWIDTH = 3.35e12
BANDWIDTH_EXPONENT = 0.2
# Columns of an expert on one rank from which kernels read at full speed, and how the speed falls below them: in the
# tables SGLang's FP8 falls to half from 2,048 to 256 columns (0.3); in served models by half as much.
FULL_WIDTH = 2048
WIDTH_EXPONENTS = {"sglang": 0.15}
LEAST_WIDTH_SHARE = 0.4


def multiply_share(machine: Machine, bits: int) -> float:
    """Return the share of the peak that multiplications of operands with ``bits`` reach, relative to the reference."""
    share = MULTIPLY_SHARES.get((machine.native, bits), REFERENCE_SHARE) / REFERENCE_SHARE
    if bits == 4 and machine.native == "fp4":
        share *= min(1.0, MOST_OF_FOUR_BITS * machine.flops_8 / machine.flops_4)
    return share


def expert_read_share(machine: Machine, engine: str, columns: float) -> float:
    """Return the share of the bandwidth at which experts are read. columns: of an expert's slice on one rank."""
    above = max(1.0, machine.bandwidth_bytes_per_s / REFERENCE_BANDWIDTH)
    narrow = float(min(1.0, columns / FULL_WIDTH) ** WIDTH_EXPONENTS.get(engine, 0.0))
    return float(above**-BANDWIDTH_EXPONENT) * max(LEAST_WIDTH_SHARE, narrow)
