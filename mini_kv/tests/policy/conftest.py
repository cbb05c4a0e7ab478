"""What is compared with libcachesim needs it: `make .venv/.peers`. Where it is missing, that is not collected."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("libcachesim") is not None else ["test_peer.py"]
