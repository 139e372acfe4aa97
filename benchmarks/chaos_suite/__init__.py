"""The chaos suite: a running load, a seeded schedule of faults, and every answer compared with an unfaulted one."""
