"""For engineers: `planning` (will it fit), `traces` (hits of real traffic), `serve` (an endpoint, KV events)."""
