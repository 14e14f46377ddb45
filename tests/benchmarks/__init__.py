"""How long our work takes beside another implementation's, in one process and one run: `make bench`."""
