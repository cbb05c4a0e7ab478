"""Files that people have of their traffic and that are not read, each with the command that makes it readable.

    inputs.json of AIPerf           docs.nvidia.com/aiperf/tutorials/datasets-inputs/inputs-json-replay
    prompts and turns for AIPerf    docs.nvidia.com/aiperf/tutorials/datasets-inputs/custom-dataset-guide
    request traces of Dynamo        docs.nvidia.com/dynamo/dev/observability/request-traces
    request logs of LiteLLM         docs.litellm.ai/docs/proxy/logging_spec, docs.litellm.ai/docs/proxy/ui_logs
    spans of OpenTelemetry          opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans
    observations of Langfuse        langfuse.com/docs/api-and-data-platform/features/export-to-blob-storage
    KV events                       vLLM `distributed/kv_events.py`, Dynamo's `KvRecorder`
    results of a load generator     `vllm bench serve --save-result`, SGLang `bench_serving`, AIPerf, GuideLLM
    message batches of Anthropic    platform.claude.com/docs/en/build-with-claude/batch-processing
    answers of a batch              `vllm run-batch -o`
    counters                        vLLM's and SGLang's /metrics
    tables (CSV, Parquet)           github.com/Azure/AzurePublicDataset, github.com/HPMLL/BurstGPT, huggingface.co

Some have no prompts, and no command finds what a file does not hold. Then the sentence says what does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_RESULTS = "it has no prompts: the data set of the run has them, as AIPerf's inputs.json, or the server's log"
_EVENTS = "events say what was stored, and not what was asked"
_ATTACH = f"{_EVENTS}: mini-kv attach SOURCE --trace FILE records the requests of a server that publishes them"
_NO_HISTORY = (
    "a later prompt also contains the answers before it, which are not in it: a server's log of the run has them"
)
_DYNAMO = (
    'gzip -dcf FILE | jq -cs \'map((.event // .) | select(.event_type == "request_end") | .request'
    " | {timestamp: .request_received_ms, input_length: .replay.input_length, output_length: .output_tokens,"
    " hash_ids: .replay.input_sequence_hashes}) | sort_by(.timestamp)[]' writes its requests;"
    " add --block-size, its trace_block_size"
)
_LANGFUSE = (
    'jq -cs \'map(select(.type == "GENERATION") | {messages: (.input | fromjson), model: .provided_model_name,'
    ' tools: [.tool_definitions[]? | fromjson], timestamp: ((.start_time[:19] | strptime("%Y-%m-%d %H:%M:%S")'
    " | mktime) * 1000 + (.start_time[20:23] | tonumber)), output_length: .usage_details.output})"
    " | sort_by(.timestamp)[]' FILE writes its requests"
)
_ANTHROPIC = (
    'jq -c \'.requests[].params | .messages = ([.system // empty | {role: "system", content: .}] + .messages)'
    " | del(.system)' FILE writes its requests, one per line"
)
_LITELLM = (
    'jq -cs \'map(select(.status != "failure" and (.cache_hit | tostring | ascii_downcase) != "true") | {messages,'
    " model, tools: .model_parameters.tools?, timestamp: (TIME), output_length: .completion_tokens})"
    " | sort_by(.timestamp)[]' FILE writes its requests"
)
_LITELLM_TIMES = {
    float: ".startTime * 1000",
    str: '(.startTime[:19] + "Z" | fromdate) * 1000 + (.startTime[20:23] | tonumber)',
}
"""The time of a request in LiteLLM's logs by the type of its field: a number of seconds, or a date."""


@dataclass(frozen=True, slots=True)
class _Format:
    """A format of JSON objects."""

    name: str
    marks: Sequence[str]
    """Paths of members, of which an object of this format has all."""
    way_out: str | Callable[[Mapping[str, Any]], str]


def _inputs_of_aiperf(fields: Mapping[str, Any]) -> str:
    """Return how to read AIPerf's inputs. It may add the history when it sends them: then they are not the prompts."""
    for session in _objects_in(fields["data"]):
        chats = [payload.get("messages") for payload in _objects_in(session.get("payloads"))]
        lists = [chat for chat in chats if isinstance(chat, list)]
        if any(chat[: len(before)] != before for before, chat in pairwise(lists)):
            return _NO_HISTORY
    return "jq -c '.data[].payloads[]' FILE writes its requests, one per line"


def _objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list. Anything else has none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _log_of_litellm(fields: Mapping[str, Any]) -> str:
    """Return how to read a log of LiteLLM, which has prompts only if it is told to store them."""
    if not fields.get("messages"):
        return "it has no prompts, unless store_prompts_in_spend_logs is set in LiteLLM's general_settings"
    return _LITELLM.replace("TIME", _LITELLM_TIMES.get(type(fields["startTime"]), _LITELLM_TIMES[float]))


_FORMATS = (
    _Format("AIPerf's inputs.json", ("data",), _inputs_of_aiperf),
    _Format("Dynamo's request trace", ("event_type",), _DYNAMO),
    _Format("Dynamo's request trace", ("timestamp", "event.event_type"), _DYNAMO),
    _Format("LiteLLM's request log", ("call_type", "startTime"), _log_of_litellm),
    _Format("Langfuse's observations", ("type", "start_time", "usage_details"), _LANGFUSE),
    _Format(
        "OpenTelemetry's spans",
        ("resourceSpans",),
        "they sum up calls of other calls, and have prompts only if these were captured: the server's log has them",
    ),
    _Format("Anthropic's message batch", ("requests",), _ANTHROPIC),
    _Format("ChatGPT's export", ("mapping",), "its chats are trees, and its system prompts are not in it"),
    _Format("Bedrock's invocation log", ("schemaType", "modelId"), "its bodies are requests of other services"),
    _Format("questions without answers", ("turns",), _NO_HISTORY),
    _Format(
        "prompts for a load generator",
        ("text",),
        "jq -c '{prompt: .text, output_length}' FILE makes plain prompts of them,"
        """ jq -c '{messages: [{role: "user", content: .text}], output_length}' FILE chats""",
    ),
    _Format("results of a benchmark", ("request_throughput",), _RESULTS),
    _Format("results of a benchmark", ("benchmarks",), _RESULTS),
    _Format("results of a benchmark", ("metadata", "metrics"), _RESULTS),
    _Format("answers of a batch", ("custom_id", "response"), "the batch's input file has the requests"),
    _Format(
        "Dynamo's KV events",
        ("timestamp", "event.worker_id"),
        f"{_EVENTS}: with DYN_REQUEST_TRACE=1 Dynamo records the requests",
    ),
    _Format("KV events", ("type", "block_hashes"), _ATTACH),
    _Format(
        "KV events",
        ("number", "events"),
        f"{_EVENTS}: mini-kv attach FILE --trace TRACE writes the requests that they show",
    ),
)
_COUNTERS = re.compile(rb"# (?:HELP|TYPE) \S")
_KV_EVENT = re.compile(rb'"(?:BlockStored|BlockRemoved|AllBlocksCleared)"')
_PROMPTS = re.compile(rb"prompt|messages|text|question|conversations?|instruction|content|input", re.IGNORECASE)
"""Columns of a table that hold prompts."""
_CELL = re.compile(rb"[\w .%/+-]*|[\d :.TZ+-]*")
"""A name, a number or a time. Lines of a log also have other characters."""
_CSV = 'import csv, json; [print(json.dumps(row)) for row in csv.DictReader(open("FILE"), delimiter="{}")]'
_FILES = {
    b"PAR1": (
        "Parquet",
        "duckdb -c \"COPY (FROM read_parquet('FILE')) TO 'FILE.jsonl'\" writes its rows, one per line",
    ),
    b"ARROW1": ("Arrow", "its rows can be written as JSON, one per line"),
    b"PK\x03\x04": ("a zip file", "python3 -m zipfile -e FILE . unpacks it"),
    b"\x28\xb5\x2f\xfd": ("a file packed by zstd", "zstd -d FILE unpacks it"),
    b"\xff\xfe": ("text in UTF-16", "iconv -f utf-16 -t utf-8 FILE writes it in UTF-8"),
    b"\xfe\xff": ("text in UTF-16", "iconv -f utf-16 -t utf-8 FILE writes it in UTF-8"),
}
"""The first bytes of files of other types."""


def refuse_object(fields: Mapping[str, Any], *, is_known: bool) -> None:
    """Raise `ValueError` if an object is in one of these formats.

    Args:
        fields: the object.
        is_known: whether it also has a field of a format that is read. Then one mark is not enough.
    """
    for other in _FORMATS:
        if len(other.marks) > is_known and all(_has(fields, path) for path in other.marks):
            way_out = other.way_out if isinstance(other.way_out, str) else other.way_out(fields)
            raise ValueError(_looks_like(other.name, way_out))


def refuse_bytes(first_line: bytes) -> None:
    """Raise `ValueError` if a file that begins so is of another type."""
    for begins, (what, way_out) in _FILES.items():
        if first_line.startswith(begins):
            raise ValueError(_looks_like(what, way_out))
    if _COUNTERS.match(first_line):
        way_out = "mini-kv why MODEL --metrics FILE explains its hit rate"
        raise ValueError(_looks_like("the counters of a server", way_out))
    if first_line.startswith(b"[") and _KV_EVENT.search(first_line):
        raise ValueError(_looks_like("KV events", _ATTACH))


def table_refusal(first_line: bytes) -> str | None:
    """Return why a table with this first line is not read. `None`: it does not look like a row of a table."""
    for separator, typed in ((b",", ","), (b";", ";"), (b"\t", r"\t")):
        cells = [cell.strip(b" \"'") for cell in first_line.split(separator)]
        if len(cells) == 1 or not all(_CELL.fullmatch(cell) for cell in cells):
            continue
        if any(_PROMPTS.fullmatch(cell) for cell in cells):
            program = _CSV.replace("{}", typed)
            return _looks_like("a table (CSV)", f"python3 -c '{program}' writes its rows, one per line")
        return _looks_like("a table (CSV)", "it has no prompts, and lengths do not say what requests share")
    return None


def _has(fields: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(fields, dict) or name not in fields:
            return False
        fields = fields[name]
    return True


def _looks_like(what: str, way_out: str) -> str:
    return f"the file looks like {what}, which is not read; {way_out}"
