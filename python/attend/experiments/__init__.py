"""Checks and times every implementation of attention on this machine. See python -m attend.experiments --help."""
