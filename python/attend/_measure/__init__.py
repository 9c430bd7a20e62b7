"""What `attend.experiments` and `attend.bench` share: problems, implementations, the truth, clocks, memory, files.

`import attend` imports none of this. Only NumPy is needed; torch widens what can be measured.
"""
