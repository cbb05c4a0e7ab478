"""A server for tests: `lessons.served`, which at its end looks for blocks that are still held."""

import itertools
import json
from dataclasses import replace

from mini_kv import LLM, SamplingParams
from mini_kv.course.lessons.served import Served
from mini_kv.story.debug import leak_report
from mini_kv.tools.serve.engine_loop import Mailbox

TEXT = "A block is free when no request holds it, and the cache remembers"


class Endpoint(Served):
    """The server, as `mini-kv serve` makes it with these options; `keys` are those of its tenants."""

    def __init__(self, keys=(), before=lambda service: None, make_mailbox=Mailbox, **options):
        def change(made):
            service = replace(made, make_mailbox=make_mailbox)
            before(service)
            return service

        flags = {"--" + name.replace("_", "-"): value for name, value in options.items()}
        arguments = [[flag] if value is True else [flag, str(value)] for flag, value in flags.items()]
        super().__init__(*itertools.chain(*arguments), keys=keys, change=change)

    def end(self):
        """End it as TERM does, and look whether a block is still held."""
        super().end()
        assert self.num_held == 0
        assert leak_report(self.engine.kv_cache_manager, {}) == ""
        assert not self.engine.has_unfinished_requests and not self.engine.scheduler.requests

    def get(self, path, **options):
        return self.ask(None, path, method="GET", **options)

    def text(self, **body):
        """Return the text of one answer that must be a good one."""
        status, _, answer = self.ask({"prompt": TEXT, "temperature": 0, **body})
        assert status == 200, answer
        return answer["choices"][0]["text"]

    def events(self, **body):
        """Return the events of a stream."""
        status, headers, content = self.ask({"prompt": TEXT, "temperature": 0, "stream": True, **body})
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), content
        lines = [line.removeprefix("data: ") for line in content.decode().split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    def open(self, prompt=TEXT, **body):
        """Begin a stream over a socket of its own, and return the socket."""
        return super().open(prompt, **body)


def offline(prompts, n=1, llm=None, **params):
    """Return what the engine says without a server."""
    found = (llm or LLM(num_blocks=129, block_size=8)).generate(prompts, SamplingParams(**params), n=n)
    return [sample for output in found for sample in output.outputs]
