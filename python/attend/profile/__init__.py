"""Implements python -m attend.profile, which explains from Nsight Compute's measurements what bounds a kernel.

| module | job |
|---|---|
| `__main__` | the command line |
| `collect` | runs Nsight Compute on a Python process that makes one call (`call`) |
| `metrics` | the requested measurements and their names |
| `report` | converts Nsight Compute's CSV to launches, in base units |
| `measures` | converts a launch to the quantities of a diagnosis |
| `diagnosis` | converts quantities to sentences, by one table of thresholds |
| `stalls` | the meaning of each stall reason in an attention kernel |
| `ladder` | the rung of a kernel, and how the next rung removes its bound |
| `output` | text and JSON |
"""
