"""python -m attend.profile: what bounds a kernel, in words, from Nsight Compute's measurements.

| module | job |
|---|---|
| `__main__` | the command line |
| `collect` | runs Nsight Compute on a Python process that makes one call (`call`) |
| `metrics` | which measurements are asked for, and under which names |
| `report` | Nsight Compute's CSV to launches, in base units |
| `measures` | a launch to the quantities that a diagnosis is made of |
| `diagnosis` | quantities to sentences, by one table of thresholds |
| `stalls` | what each reason to wait means in an attention kernel |
| `ladder` | which rung a kernel belongs to, and what the next one does about its bound |
| `output` | text and JSON |
"""
