"""Hands pytest to the labs' harness."""

pytest_plugins = ["mini_kv.labkit.plugin"]
