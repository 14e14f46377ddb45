"""Operations that process the changes of tables, each once."""
