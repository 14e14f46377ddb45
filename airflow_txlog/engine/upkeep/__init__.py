"""Operations on a table beside its rows: vacuum, restore, history, and findings about its health."""
