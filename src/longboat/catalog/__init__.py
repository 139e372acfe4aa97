"""Facts about models: pure readers of the files that models come with.

The caller reads the files; nothing here touches a disk or a network.
"""
