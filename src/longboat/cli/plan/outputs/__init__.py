"""What plans are written as beside tables: numbers of machines, a fleet file, commands of engines."""
