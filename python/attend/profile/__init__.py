"""Implements python -m attend.profile, which explains from Nsight Compute's measurements what bounds a kernel.

Modules:
    __main__: implements the command line.
    call: makes one attention call.
    collect: runs `call` under Nsight Compute.
    metrics: lists the requested measurements and their names.
    report: reads the launches from Nsight Compute's CSV and converts their values to base units.
    measures: computes the quantities of a diagnosis from a launch.
    diagnosis: converts these quantities to sentences, by one table of thresholds.
    stalls: describes what each stall reason means in an attention kernel.
    ladder: finds the rung of a kernel, and describes how the next rung removes its bound.
    output: writes text and JSON.
"""
