"""The search for the best layout, one ranking for ``plan`` and ``up``, and its reasons. It knows no Ray node."""
