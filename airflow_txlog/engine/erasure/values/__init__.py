"""Values: the bytes and the texts in which the value of a subject may stand."""
