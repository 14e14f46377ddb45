"""A Spark Connect server on this machine that the tasks of one user share.

`runner` runs a job on it, `server` finds or starts one and leases its sessions, `keeper` is the process that starts,
watches and ends it, and `folders` are the files through which they coordinate.
"""
