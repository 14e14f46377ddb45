"""Trouble for Spark's Python workers, which load this before anything else: they die, fail or wait where it is ordered.

An order is an empty file `<point>.<how>` in the folder TXLOG_FAULTS. The first task to come by the point claims the
order by renaming it, and obeys; every other attempt goes on as if nothing were. Standard library alone.
"""

import importlib.abc
import importlib.util
import os
import signal
import sys
import time

TARGET = "airflow_txlog.datafiles.tasks.scan_and_write"


def obey(point):
    folder = os.environ.get("TXLOG_FAULTS", "")
    for how in ("kill", "fail", "wait"):
        order = os.path.join(folder, f"{point}.{how}")
        try:
            os.rename(order, order + ".obeyed")
        except OSError:
            continue
        if how == "kill":
            os.kill(executor(), signal.SIGKILL)
        if how != "fail":
            # Spark ends a waiting attempt when another one of its task has succeeded.
            time.sleep(60)
            return
        raise RuntimeError("ordered to fail")


def executor():
    """The process of the executor: the parent of the daemon that forked this worker."""
    with open(f"/proc/{os.getppid()}/stat") as f:
        return int(f.read().rsplit(")", 1)[1].split()[1])


def trouble(module):
    """A scan meets its trouble at the first batch; a writing task when its files are written and nobody was told."""
    records, read_batches = module.records, module.read_batches

    def told(staged):
        # Not while the source is pinned: those files are in no commit anyway.
        if not any(file.path.startswith("txlog-inputs-") for file in staged):
            obey("staged")
        return records(staged)

    def read(*args, **kwargs):
        obey("scan")
        return read_batches(*args, **kwargs)

    module.records, module.read_batches = told, read


class Wrapped(importlib.abc.Loader):
    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        trouble(module)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.loader = Wrapped(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
