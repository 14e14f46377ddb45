"""Deletion vectors: roaring bitmaps, and the rows of a file that they delete."""
