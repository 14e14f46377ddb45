"""From one version to the next: transactions, conflict rules, isolation, the commit loop."""
