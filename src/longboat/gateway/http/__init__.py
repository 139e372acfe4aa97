"""HTTP as bytes: heads, framing, responses and errors. It holds no policy and knows no engine."""
