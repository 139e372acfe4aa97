"""What ``bench_scaling`` is made of: loads, peers, the clairvoyant minimum, and tables."""
