"""One module for each file that users write: read, checked and written back."""
