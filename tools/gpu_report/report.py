"""Writes the report with its verdict, and reads an earlier report to continue it."""

import json
import sys

from gpu_report.sanitizers import TOOLS


def rounded(value):
    """Returns the value with floats rounded to three digits, which are enough to compare an error with its budget."""
    if isinstance(value, float):
        return float(f"{value:.3g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def verdict(report):
    """Returns whether all parts of the report have passed and no part is missing."""
    counts, sanitizers = report["tests"], report["sanitizers"]
    if report.get("first", {}).get("failed"):
        return False
    return (
        counts["failed"] == counts["skipped"] == 0
        and not counts.get("missing")
        and len(sanitizers) == len(TOOLS)
        and all(s["passed"] for s in sanitizers)
        and report["python"]["passed"]
    )


def write(report, target):
    """Writes the report with its verdict."""
    report["passed"] = verdict(report)
    cases = sorted(report["cases"], key=lambda case: (case["case"], case["compute"]))
    entries = ",\n".join("    " + json.dumps(rounded(case), separators=(",", ":")) for case in cases)
    head = {key: value for key, value in report.items() if key != "cases"}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(head, indent=2)[:-2] + ',\n  "cases": [\n' + entries + "\n  ]\n}\n")


def earlier_report(target, digest, names_digest):
    """Reads an earlier report, to which results are added. It must belong to the same kernels and tests."""
    if not target.exists():
        sys.exit(f"gpu-test: {target} does not exist: --only tests makes it")
    report = json.loads(target.read_text())
    if report.get("kernel_digest") != digest:
        sys.exit(f"gpu-test: {target} was made with other kernels, {report.get('kernel_digest')}; these are {digest}")
    if report.get("names_digest") != names_digest:
        sys.exit(f"gpu-test: {target} was made with other tests, so its pieces differ: use --only tests to start again")
    return report
