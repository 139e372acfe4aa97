"""Judgements about engines: alive, slow, broken, or killed by a request. Pure; time is an argument."""
