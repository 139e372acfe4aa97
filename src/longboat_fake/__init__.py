"""An engine without a model, for tests: real APIs, known tokens, faults on request. Independent of ``longboat``."""
