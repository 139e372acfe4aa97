"""One request as data: its head's plan, its lease and its account; and the state that requests share. No socket."""
