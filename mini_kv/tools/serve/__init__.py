"""An HTTP endpoint with OpenAI's requests, an engine in a thread, and a page that draws the running cache.

    client --HTTP--> app --Ticket--> EngineLoop (a thread) --> LLMEngine
                      ^                  |
                      +--- pieces of text, each client's own queue

Reading order: `protocol` (the fields of a request), `tenants` (the keys, and their salts), `engine_loop` (the one
loop), `answers` (response bodies), `streams`, `app` (the endpoint), `live_story` (the running cache as a story),
`live_page` (the page at /), `prometheus`, `server`, and `serve_command`, where all of it is put together.

KV events out: `kv_events` (vLLM's names and bytes), `kv_events_manager` (from changes of blocks to events),
`kv_events_publisher` (over ZeroMQ, with numbers and a replay). In: `mirror` (another engine's cache, made of
its events), `mirror_trace` (the requests that caused them), `attach` (sockets, recordings, a server's counters),
`attach_draw` (a mirror as text), `attach_command` (`mini-kv attach`).
"""
