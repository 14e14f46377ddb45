"""The arguments that a DAG author gives an operator: rendering their templates and reading their forms."""
