"""Storage that weights come from: lists a source's files and reads ranges of them. Writes nothing."""
