"""One engine: its scheduler, its KV cache, and how long its steps take. Knows no gateway and no trace."""
