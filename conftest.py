"""Hands pytest to the labs' harness, and to the project's rule about skips."""

pytest_plugins = ["mini_kv.labkit.plugin", "mini_kv.tests.skips"]
