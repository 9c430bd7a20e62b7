"""Compares attend with its peers: latency, memory, and the machine's ceilings. See python -m attend.bench --help."""
