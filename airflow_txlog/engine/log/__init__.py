"""The content of `_delta_log`: file names, actions and their wire form, segments, checkpoints."""
