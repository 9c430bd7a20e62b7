"""What `attend.experiments` and `attend.bench` share: problems, implementations, the truth, clocks, memory, files.

`attend.profile` takes its way of writing files from here.

`import attend` imports none of this. Only NumPy is needed; torch widens what can be measured.
"""
