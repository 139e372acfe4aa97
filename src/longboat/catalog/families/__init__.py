"""One reader per family of models: it turns the fields of a config.json into layers.

A reader builds layers from the parts in ``attention``, ``feed_forward`` and ``mixers``, with unquantized weights under
the names that the publisher's files use. ``registry`` maps architectures to readers.
"""
