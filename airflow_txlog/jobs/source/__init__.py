"""Where the rows of a source come from: which files there are, which columns they have, and what reads them."""
