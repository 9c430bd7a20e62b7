"""The parts of the report that tools/gpu_test.py writes."""
