"""What a DAG author gives an operator: how its templates are rendered, and its forms read."""
