"""Compares attend with its peers in latency and memory, and with the ceilings of the machine. See python -m
attend.bench --help.
"""
