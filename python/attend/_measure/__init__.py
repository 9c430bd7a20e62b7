"""Code shared by `attend.experiments` and `attend.bench`: problems, implementations, reference results, clocks, memory,
files.

`attend.profile` uses only the functions that write files.

`import attend` does not import this package. This package requires only NumPy. With torch, more implementations can be
measured.
"""
