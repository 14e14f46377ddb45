"""Imported by every Python process below the deployment: lets a test hold a job still at one point of its way.

A file `POINT` in a table's folder `.pauses` asks for it: the first process that comes to the point renames the file to
`POINT.reached`, writes its id into it, and waits until it is killed or `POINT.go` is there.

    before    the source of a merge is about to be written down, by a Python worker, and nothing is staged
    staging   a data file is about to be opened, by a Python worker, or by the job itself where it needs no Spark
    after     the driver has put its commit, and no other process knows

A file `looks` there gets a byte for each listing of the table's log.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

STORE = "airflow_txlog.storage.local"


def pause(root: str, point: str) -> None:
    folder = os.path.join(root.removeprefix("file://"), ".pauses")
    asked, reached = os.path.join(folder, point), os.path.join(folder, f"{point}.reached")
    try:
        os.rename(asked, f"{asked}.taken")
    except OSError:
        return
    with open(f"{asked}.taken", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{asked}.taken", reached)
    while not os.path.exists(os.path.join(folder, f"{point}.go")):
        time.sleep(0.05)


def count_look(root: str) -> None:
    try:
        file = os.open(os.path.join(root.removeprefix("file://"), ".pauses", "looks"), os.O_WRONLY | os.O_APPEND)
    except OSError:
        return
    os.write(file, b".")
    os.close(file)


def with_pauses(module: ModuleType) -> None:
    store: Any = module.LocalStore
    open_new, put_new, put_if_absent, list_files = store.open_new, store.put_new, store.put_if_absent, store.list

    def listed(self: Any, directory: str, **given: Any) -> Any:
        if directory == "_delta_log":
            count_look(self.root)
        return list_files(self, directory, **given)

    def opened(self: Any, path: str) -> Any:
        pause(self.root, "before" if path.startswith("txlog-inputs-") else "staging")
        return open_new(self, path)

    def put_at_once(self: Any, path: str, data: Any) -> Any:
        pause(self.root, "before" if path.startswith("txlog-inputs-") else "staging")
        return put_new(self, path, data)

    def put(self: Any, path: str, data: bytes) -> bool:
        done: bool = put_if_absent(self, path, data)
        if done and path.startswith("_delta_log/") and path.endswith(".json"):
            pause(self.root, "after")
        return done

    store.open_new, store.put_new, store.put_if_absent, store.list = opened, put_at_once, put, listed


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the module of local tables as ever, and adds the pauses to it."""

    def __init__(self) -> None:
        self._loader: Any = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != STORE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        with_pauses(module)


sys.meta_path.insert(0, Finder())
