"""mini_kv's own engine behind the protocol.

mini-kv verify -- python -m mini_kv.course.verify.adapters.mini_kv_engine
"""

from mini_kv.course.verify.adapter import run
from mini_kv.course.verify.adapters.mini_kv_manager import ManagerAdapter
from mini_kv.course.verify.adapters.mini_kv_scheduler import SchedulerAdapter

if __name__ == "__main__":
    run(ManagerAdapter(), SchedulerAdapter())
