"""The facts of each page: frozen records, which the JSON answers contain and the templates render."""
