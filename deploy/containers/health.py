"""Ends with 0 while this container's node of the cluster is up, else with 1. Needs only the standard library."""

import json
import os
import sys

try:
    with open(os.path.join(os.environ["LONGBOAT_RUN"], "node.json")) as file:
        record = json.load(file)
    with open(f"/proc/{int(record['runner_pid'])}/stat") as file:
        stat = file.read().rpartition(")")[2].split()
    if stat[0] in "ZX" or int(stat[19]) != int(record["runner_born"]):  # numbers of processes come again at each start
        sys.exit("the node is not up: the process that kept it has ended")
except (OSError, ValueError, KeyError) as error:
    sys.exit(f"the node is not up: {error}")
if record["phase"] not in ("up", "rejoining"):
    sys.exit(f"the node is {record['phase']}")
