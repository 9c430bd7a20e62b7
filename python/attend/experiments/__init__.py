"""Every implementation of attention on this machine, checked and timed: python -m attend.experiments --help."""
