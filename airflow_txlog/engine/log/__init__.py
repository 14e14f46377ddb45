"""What lies in `_delta_log`: file names, actions and their wire form, segments, checkpoints."""
