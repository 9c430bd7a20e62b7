"""Small examples of the result files of attend.bench's commands."""

WHAT = {"experiment": "seed", "implementation": "cpu", "library": "attend", "device": "cpu", "dtype": "f32"}
ROW = WHAT | {"mode": "forward", "B": 1, "H": 1, "S": 64, "D": 64, "causal": False, "ms": 1.0, "tflops": 0.1}
DECODE_ROW = {"implementation": "attend", "library": "attend", "state": "warm", "B": 1, "S": 64, "page_size": 0}
DECODE_ROW |= {"us": 10.0, "gbps": 1.0}
DECODE = {"device": "cpu", "H": 8, "Hkv": 2, "D": 64, "rows_of_q": 1, "dtype": "bf16", "cache": "i8"}
MACHINE = {"cpu": "a CPU", "attend_threads": 2, "torch": None, "gpu": None}
KINDS = {
    "compare": {
        "dtype": "f32",
        "causal": False,
        "device": "cpu",
        "grid": "seed",
        "rows": [
            ROW,
            ROW | {"S": 128, "ms": 4.0, "tflops": 0.1},
            ROW | {"S": 256, "ms": None, "tflops": None},
            ROW | {"implementation": "torch", "library": "torch", "ms": 2.0},
        ],
    },
    "decode": DECODE
    | {
        "rows": [
            DECODE_ROW,
            DECODE_ROW | {"S": 128, "us": 15.0},
            DECODE_ROW | {"implementation": "torch", "library": "torch", "us": 20.0, "gbps": 0.5},
            DECODE_ROW | {"B": 2, "us": None, "gbps": None},
        ],
    },
    "memory": {"rows": [{**ROW, "peak_mib": 2.0}, {**ROW, "S": 128, "peak_mib": None}]},
    "roofline": {
        "ceilings": {"copy_gbps": 10.0, "peak_of": "multiply-adds", "peak_tflops": {"f32": 0.3, "bf16": 1.0}},
        "rows": [ROW | {"intensity": 9.0}, ROW | {"mode": "backward", "intensity": 90.0}],
    },
}
