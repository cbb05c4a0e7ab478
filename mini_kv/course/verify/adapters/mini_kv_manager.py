"""mini_kv's `KVCacheManager` behind the protocol."""

from typing import Any

from mini_kv.core.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from mini_kv.core.kv_cache_manager import KVCacheManager
from mini_kv.core.request import LoRARequest, MultiModalFeature
from mini_kv.course.verify.adapters.specs import spec_of
from mini_kv.course.verify.vllm_names import ManagerWithVLLMNames


class ManagerAdapter(ManagerWithVLLMNames):
    """Makes the manager and the requests. All other calls have vLLM's names."""

    def make_manager(self, settings: dict[str, Any]) -> Any:
        """Return a manager with these settings."""
        drafters = settings["drafter_groups"]
        groups = tuple(
            KVCacheGroupSpec((f"group {i}",), spec_of(group), is_eagle_group=i in drafters)
            for i, group in enumerate(settings["groups"])
        )
        config = KVCacheConfig(settings["num_blocks"], groups, None, settings["num_hash_lookahead_tokens"])
        options = {name: settings[name] for name in ("enable_caching", "max_in_flight_tokens", "watermark")}
        return KVCacheManager(config, **options)

    def do_new(self, message: dict[str, Any]) -> None:
        """Make a request."""
        lora, images = message["lora"], message["images"]
        self.requests[message["request"]] = self.manager.new_request(
            message["id"],
            message["tokens"],
            cache_salt=message["salt"],
            lora_request=LoRARequest(*lora) if lora else None,
            mm_features=[MultiModalFeature(*image) for image in images],
        )

    def do_abort(self, message: dict[str, Any]) -> dict[str, Any]:
        """Withdraw the promises of a request whose step never ran, then free it."""
        adopters = self.manager.withdraw_promises(self.requests[message["request"]])
        self.do_free(message)
        return {"adopters": adopters}
