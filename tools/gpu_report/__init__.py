"""The implementation of tools/gpu_test.py: it runs the tests and writes the report."""
