"""The parts of tools/gpu_test.py, which write its report."""
