"""The machines that are planned for, from a text, a file or a running cluster, and what-if edits of them."""
