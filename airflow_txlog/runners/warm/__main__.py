"""`python -m airflow_txlog.runners.warm list | stop`: the warm servers of this user on this machine."""

from __future__ import annotations

import sys

from airflow_txlog.runners.warm.server import describe_all, stop_all


def main(arguments: list[str]) -> int:
    """List the servers, or end them and the jobs that run on them."""
    if arguments == ["list"]:
        print(*describe_all(), sep="\n")
    elif arguments == ["stop"]:
        print(f"{stop_all()} stopped")
    else:
        print("usage: python -m airflow_txlog.runners.warm list|stop", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
