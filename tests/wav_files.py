"""Small WAV files for tests of audio."""

from __future__ import annotations

import io
import math
import struct
import wave

__all__ = ("tone",)


def tone(hertz: int = 300, *, seconds: float = 2.0, rate: int = 16_000) -> bytes:
    """Return a tone as a WAV file with 16 bits a sample."""
    count = int(rate * seconds)
    samples = (int(9000 * math.sin(2 * math.pi * hertz * at / rate)) for at in range(count))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(struct.pack(f"<{count}h", *samples))
    return file.getvalue()
