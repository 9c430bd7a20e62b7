"""Runs the tests whose results a report does not contain yet, until a deadline."""

import concurrent.futures
import os
import time

from gpu_report.again import passed_first
from gpu_report.pieces import AHEADS, PIECES, RINGS, run_piece, take
from gpu_report.process import say


class Tests:
    """Runs the missing pieces of a report. After the deadline no further piece is started. The report is saved after
    each piece.
    """

    def __init__(self, report, tests, folder, num_gpus, deadline, save):
        self.report, self.tests, self.folder, self.num_gpus = report, tests, folder, num_gpus
        self.deadline, self.save = deadline, save
        self.missing = list(report["tests"]["missing"])
        self.passed = passed_first(report, tests, num_gpus)

    def begin(self, piece):
        if time.monotonic() < self.deadline and piece in self.missing:
            return run_piece(self.tests, piece, self.folder, self.num_gpus, self.passed)
        return None

    def done(self, result):
        if result is not None:
            piece, status = result
            take(self.report, piece, status, self.folder)
            self.save(self.report)

    def ahead(self):
        """Runs the pieces that compile kernels, which later pieces find on disk. They run even if the report already
        contains their results.
        """
        if time.monotonic() < self.deadline:
            start = time.monotonic()
            pieces = [f"ahead{index}" for index in range(AHEADS)]
            with concurrent.futures.ThreadPoolExecutor(AHEADS) as pool:
                results = pool.map(
                    lambda piece: run_piece(self.tests, piece, self.folder, self.num_gpus, self.passed), pieces
                )
                for piece, result in zip(pieces, results):
                    self.done(result if piece in self.missing else None)
            say(f"compiled ahead: {time.monotonic() - start:.0f} s")

    def pieces(self):
        """Runs the pieces of ordinary tests, several at the same time."""
        workers = max(1, min(48, (os.cpu_count() or 2) - 2))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            jobs = [pool.submit(self.begin, piece) for piece in self.missing if piece.isdigit()]
            for job in concurrent.futures.as_completed(jobs):
                self.done(job.result())
                left = sum(piece.isdigit() for piece in self.report["tests"]["missing"])
                say(f"tests: {PIECES - left} of {PIECES} pieces done")

    def by_themselves(self):
        """Runs tests that measure time or memory, tests that use all GPUs (whose kernels are now on disk), and tests
        that may hang.
        """
        self.done(self.begin("alone"))
        with concurrent.futures.ThreadPoolExecutor(RINGS) as pool:
            for result in pool.map(self.begin, [piece for piece in self.missing if piece.startswith("ring")]):
                self.done(result)
        self.done(self.begin("last"))
        log = self.folder / "tests-alone.log"
        for line in log.read_text().splitlines() if log.exists() else ():
            if "of host time" in line:
                say(line)
        counts = self.report["tests"]
        say(f"{counts['run']} tests, {counts['failed']} failed, {counts['skipped']} skipped, "
            f"{len(counts['missing'])} pieces missing; {len(self.report['cases'])} comparisons")  # fmt: skip
