"""attend beside its peers: latency, memory, and the machine's ceilings. python -m attend.bench --help."""
