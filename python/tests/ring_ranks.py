"""Starts processes that are the ranks of a ring. All ranks run the same function and communicate over gloo or, on GPUs,
over NCCL.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pathlib
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 120


def normal(device: Any, *shape: int, seed: int = 0) -> Any:
    """Returns random numbers that are the same on every rank."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


class Ranks:
    """`run(function, *args)` calls function(rank, size, device, *args) on each rank and returns their results.

    The processes stay alive between calls.
    """

    def __init__(self, size: int, device: str) -> None:
        # The processes are forked from a server that has not used a GPU. The server has imported torch, which takes
        # seconds. It has also imported inductor's settings. use_deterministic_algorithms() needs them, and each rank
        # would take two more seconds to import them.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["torch.distributed", "torch._inductor.config", "attend.ring._operators", "ring_ranks"]
        )
        self._folder = tempfile.TemporaryDirectory()
        self._pipes = []
        self.processes = []
        for rank in range(size):
            mine, its = context.Pipe()
            process = context.Process(target=_serve, args=(its, rank, size, device, self._folder.name), daemon=True)
            process.start()
            its.close()
            self._pipes.append(mine)
            self.processes.append(process)

    def outcomes(self, function: Callable[..., Any], *args: Any, dying: int = -1) -> list[Any]:
        """Returns the result of each rank, or the exception that it raised. The rank `dying` exits without a result,
        which is returned as None.
        """
        for pipe in self._pipes:
            pipe.send((function, args))
        end = time.monotonic() + TIMEOUT_S
        found: list[Any] = []
        for rank, pipe in enumerate(self._pipes):
            if rank == dying:
                found.append(None)
                continue
            if not pipe.poll(max(0.0, end - time.monotonic())):
                stacks = self._stacks()
                self.close()
                raise TimeoutError(f"rank {rank} has said nothing for {TIMEOUT_S} s\n{stacks}")
            found.append(pipe.recv())
        return found

    def _stacks(self) -> str:
        """Returns the current Python stack of each rank."""
        for process in self.processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(2)
        files = sorted(pathlib.Path(self._folder.name).glob("stacks_*"))
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in files)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        found = self.outcomes(function, *args)
        for rank, outcome in enumerate(found):
            if isinstance(outcome, Exception):
                raise AssertionError(f"rank {rank}: {outcome.args[-1]}")  # noqa: TRY004 (the test has failed)
        return found

    def is_alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()


class RaisedError(Exception):
    """An exception of a rank: the names of its class and base classes, its text, and its traceback."""

    @property
    def classes(self) -> list[str]:
        return self.args[0]

    @property
    def text(self) -> str:
        return self.args[1]


def _serve(pipe: Any, rank: int, size: int, device: str, folder: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    stacks = open(os.path.join(folder, f"stacks_{rank}"), "w")  # noqa: SIM115 (stays open as long as the process runs)
    faulthandler.register(signal.SIGUSR1, stacks)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    where = torch.device("cpu")
    if device == "cuda":
        where = torch.device("cuda", rank)
        torch.cuda.set_device(where)
    store = dist.FileStore(os.path.join(folder, "store"), size)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=size)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            break
        try:
            outcome = function(rank, size, where, *args)
        except Exception as error:  # noqa: BLE001 (it is sent to the test's process)
            classes = [kind.__name__ for kind in type(error).__mro__]
            outcome = RaisedError(classes, str(error), traceback.format_exc())
        pipe.send(outcome)
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


_pools: dict[tuple[int, str], Ranks] = {}


def ranks_of(size: int, device: str) -> Ranks:
    """Returns the ranks of an earlier call if they are still alive, otherwise starts new ranks."""
    found = _pools.get((size, device))
    if found is None or not found.is_alive():
        if found is not None:
            found.close()
        found = _pools[size, device] = Ranks(size, device)
    return found


def close_all() -> None:
    while _pools:
        _pools.popitem()[1].close()
