"""A small HTTP/1.1 server, and the headers that a gateway adds to a request."""
