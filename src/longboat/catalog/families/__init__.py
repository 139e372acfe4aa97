"""One reader a family of models: fields of a config.json → layers.

A reader builds layers from the parts in ``attention``, ``feed_forward`` and ``mixers``, with unquantized weights under
the names that the publisher's files use. ``registry`` says which architectures each one knows.
"""
