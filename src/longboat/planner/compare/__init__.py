"""Plans in several formats and over parts of the machines, compared. It knows no fleet file and no terminal."""
