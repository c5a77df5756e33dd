"""OpenVINO GenAI behind /v1/completions, as far as `appliance bench` asks: token ids in, greedy, streamed or whole.

    openvino/bin/python openvino_server.py MODEL PORT [--precision f32] [--threads 2] [--cache-gib 4]

The package has no server. This one adds little: a thread steps its continuous batching, and each connection has a
thread that writes what its request got. Install it with install_peers.sh.
"""

import argparse
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Tokens = queue.SimpleQueue[list[int] | None]  # of one request, as steps give them; None ends them


class Pipeline:
    """The package's continuous batching. The package is in an environment of its own, so --help does not import it."""

    def __init__(self, model: str, precision: str, threads: int, cache_gib: int) -> None:
        import openvino  # noqa: PLC0415 - as the class says
        import openvino_genai  # noqa: PLC0415 - as the class says

        self._genai, self._tensor = openvino_genai, openvino.Tensor
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_batched_tokens, scheduler.max_num_seqs = cache_gib, 2048, 64
        scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
        properties = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler_config=scheduler, device="CPU", properties=properties
        )

    def step(self) -> None:
        self._pipeline.step()

    def begin(self, number: int, ids: list[int], max_tokens: int) -> Any:
        """The package's handle of a new request."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, False
        return self._pipeline.add_request(number, self._tensor(np.array([ids], np.int64)), config)

    def is_running(self, handle: Any) -> bool:
        return bool(handle.get_status() == self._genai.GenerationStatus.RUNNING)


class Batching(threading.Thread):
    """Steps the pipeline while requests are open."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(daemon=True)
        self._pipeline = pipeline
        self._new: queue.SimpleQueue[tuple[list[int], int, Tokens]] = queue.SimpleQueue()
        self._open: dict[int, tuple[Any, Tokens]] = {}
        self._number = 0

    def add(self, ids: list[int], max_tokens: int) -> Tokens:
        tokens: Tokens = queue.SimpleQueue()
        self._new.put((ids, max_tokens, tokens))
        return tokens

    def run(self) -> None:
        while True:
            while not self._open or not self._new.empty():
                self._begin(*self._new.get())
            self._pipeline.step()
            for number, (handle, tokens) in list(self._open.items()):
                while handle.can_read():
                    tokens.put([token for output in handle.read().values() for token in output.generated_ids])
                if not self._pipeline.is_running(handle):
                    tokens.put(None)
                    del self._open[number]

    def _begin(self, ids: list[int], max_tokens: int, tokens: Tokens) -> None:
        self._number += 1
        self._open[self._number] = self._pipeline.begin(self._number, ids, max_tokens), tokens


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    batching: Batching

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer(json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = body["prompt"] if isinstance(body["prompt"], list) else list(body["prompt"].encode())
        tokens = self.batching.add(ids, body["max_tokens"])
        if body.get("stream"):
            return self._stream(tokens, len(ids))
        count = 0
        while (some := tokens.get()) is not None:
            count += len(some)
        return self._answer(
            json.dumps({"choices": [{"index": 0, "text": ""}], "usage": usage(len(ids), count)}).encode()
        )

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, tokens: Tokens, num_prompt: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = 0
        while (some := tokens.get()) is not None:
            count += len(some)
            for _ in some:
                self._event({"choices": [{"index": 0, "text": "x"}]})
        self._event({"choices": [], "usage": usage(num_prompt, count)})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def usage(num_prompt: int, num_output: int) -> dict[str, int]:
    return {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": num_prompt + num_output}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--precision", default="f32", help="of the arithmetic, where weights are not quantized")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-gib", type=int, default=4)
    options = parser.parse_args()
    pipeline = Pipeline(options.model, options.precision, options.threads, options.cache_gib)
    Handler.batching = Batching(pipeline)
    Handler.batching.start()
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
