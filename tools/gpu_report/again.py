"""Runs the tests of a filter before all others, or runs tests of a complete report again."""

import concurrent.futures
import fnmatch
import json

from gpu_report.pieces import RING, RINGS, beyond, gtest_results, names_of, run_part
from gpu_report.process import say

SOME = 24  # number of processes that run concurrently
DID_NOT_END = " did not end"


def jobs_of(names, num_gpus):
    """Returns (piece, shard, number of shards, filter, GPUs) of each process that is needed to run these tests."""
    of_ring = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in RING.split(":"))]
    others = [n for n in names if n not in set(of_ring)]
    every = ",".join(map(str, range(num_gpus)))
    jobs = [(f"again{i}", i, SOME, ":".join(others), str(i % num_gpus)) for i in range(SOME) if i < len(others)]
    return jobs + [(f"again-ring{i}", i, RINGS, ":".join(of_ring), every) for i in range(RINGS) if i < len(of_ring)]


def results_of(pieces, folder):
    """Reads the files of processes that have ended. Returns ({test: (result, failures)}, cases)."""
    results, cases = {}, []
    for piece in pieces:
        gtest, found = folder / f"gtest-{piece}.json", folder / f"report-{piece}.json"
        results |= {name: (result, why) for name, result, why in gtest_results(gtest)} if gtest.exists() else {}
        cases += json.loads(found.read_text())["cases"] if found.exists() else []
    return results, cases


def run_named(tests, names, folder, num_gpus):
    """Runs these tests. Returns ({test: (result, failures)}, cases)."""
    jobs = jobs_of(names, num_gpus)
    with concurrent.futures.ThreadPoolExecutor(len(jobs) or 1) as pool:
        list(pool.map(lambda job: run_part(tests, *job[:4], folder, job[4]), jobs))
    return results_of([piece for piece, *_ in jobs], folder)


def names_here(tests, chosen, num_gpus):
    """Returns the tests of a filter that can run on this number of GPUs."""
    return names_of(tests, chosen + ("-" + ":".join(beyond(num_gpus)) if beyond(num_gpus) else ""))


def run_first(report, tests, chosen, folder, num_gpus):
    """Runs the tests of a filter before the pieces. The pieces then omit the tests that passed."""
    names = names_here(tests, chosen, num_gpus)
    results, cases = run_named(tests, names, folder, num_gpus)
    bad = {name: why for name, (result, why) in results.items() if why or result not in ("COMPLETED", "SKIPPED")}
    for name, why in bad.items():
        say(f"FAILED {name}\n{chr(10).join(why)[:1500]}")
    silent = [name + DID_NOT_END for name in names if name not in results]
    skipped = sum(result == "SKIPPED" for result, _ in results.values())
    report["first"] = {"filter": chosen, "run": len(results), "failed": len(bad) + len(silent), "skipped": skipped,
                       "failures": [*bad, *silent], "cases": len(cases),
                       "cases_failed": sum(not case["passed"] for case in cases)}  # fmt: skip
    say(f"first: {len(results)} of {len(names)} tests, {len(bad) + len(silent)} failed, {len(cases)} comparisons")


def passed_first(report, tests, num_gpus):
    """Returns the tests that --first ran and that passed."""
    first = report.get("first")
    if first is None:
        return frozenset()
    failed = {name.removesuffix(DID_NOT_END) for name in first["failures"]}
    return frozenset(names_here(tests, first["filter"], num_gpus)) - failed


def replace(report, names, results, cases):
    """Replaces earlier results in the report by those of the tests `names`. Returns the number of failures."""
    counts = report["tests"]
    bad = {name: why for name, (result, why) in results.items() if why or result != "COMPLETED"}
    for name, why in bad.items():
        say(f"FAILED {name}\n{chr(10).join(why)[:1500]}")
    # Failures of tests without a new result are kept.
    counts["failures"] = [n for n in counts["failures"] if n not in results] + list(bad)
    silent = [name for name in names if name not in results and name not in counts["failures"]]
    counts["failures"] += [name + DID_NOT_END for name in silent]
    counts["failed"] = len(counts["failures"])
    if first := report.get("first"):
        first["failures"] = [n for n in first["failures"] if n.removesuffix(DID_NOT_END) not in results]
        first["failed"] = len(first["failures"])
    counts["again"] = sorted({*counts.get("again", []), *results})
    new = {(case["compute"], case["case"]) for case in cases}
    kept = [c for c in report["cases"] if c["passed"] and (c["compute"], c["case"]) not in new]
    report["cases"] = kept + cases
    return len(bad)


def run_again(report, tests, chosen, folder, num_gpus):
    """Runs the failed tests of a report and the tests of a filter. The new results replace the earlier ones."""
    counts = report["tests"]
    failures = [
        name.removesuffix(DID_NOT_END) for name in counts["failures"] + report.get("first", {}).get("failures", [])
    ]
    named = [name for name in failures if " " not in name]  # all other entries are names of processes, not of tests
    wanted = ":".join([*filter(None, [chosen]), *named])
    names = names_here(tests, wanted, num_gpus)
    results, cases = run_named(tests, names, folder, num_gpus)
    failed = replace(report, names, results, cases)
    say(f"again: {len(results)} of {len(names)} tests, {failed} failed; {counts['failed']} failures in all")
