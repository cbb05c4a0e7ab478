"""mini_kv: a small, real KV-cache engine, and the workbook built on it."""

__version__ = "0.1.0"
