"""Facts with sources: models, accelerators, links, engines, prices; and readers of the files that models come with.

Pure but for two thin edges: ``library`` reads the data files of this package, ``read_model`` local files. The network
is reached through a function that the caller passes in.
"""

from longboat import compiled as _compiled  # noqa: F401 - compiled modules come before their sources
