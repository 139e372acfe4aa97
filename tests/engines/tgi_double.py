#!/usr/bin/env python3
"""A stand-in for TGI's launcher: its flags, paths, events and errors, and words instead of a model's tokens."""

from __future__ import annotations

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ("My", " name", " is", " Tiny")
IS_HELD = "hold"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    num_requests = 0

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path in ("/health", "/ping"):
            self.reply(200, b"", "text/plain")
        elif self.path == "/metrics":
            text = "tgi_batch_current_size 3\ntgi_queue_size 2\ntgi_request_generated_tokens_sum 40\n"
            self.reply(200, f"{text}tgi_request_input_length_sum 17\n".encode(), "text/plain")
        else:
            self.reply(404, b"", "text/plain")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = os.environ.get("API_KEY")
        if key and self.headers.get("authorization") != f"Bearer {key}":
            self.reply(401, b"", "text/plain")
        elif body.get("inputs") == "overloaded":
            self.fail(429, "Model is overloaded", "overloaded")
        elif body.get("inputs") == "":
            self.fail(422, "Input validation error: `inputs` cannot be empty", "validation")
        elif self.path == "/generate":
            self.send({"generated_text": "".join(WORDS[: self.num_tokens(body)])})
        elif self.path == "/generate_stream":
            self.stream(body)
        elif self.path == "/v1/chat/completions":
            message = {"role": "assistant", "content": "".join(WORDS)}
            self.send({"model": ARGS.model_id, "choices": [{"index": 0, "message": message}], "usage": {}})
        else:
            self.reply(404, b"", "text/plain")

    def num_tokens(self, body: dict) -> int:
        return body.get("parameters", {}).get("max_new_tokens", 100)

    def stream(self, body: dict) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        words = WORDS[: self.num_tokens(body)]
        for index, word in enumerate(words, 1):
            token = {"id": 100 + index, "text": word, "logprob": -0.1, "special": False}
            last = index == len(words)
            event = {
                "index": index,
                "token": token,
                "generated_text": "".join(words) if last else None,
                "details": None,
            }
            self.chunk(f"data:{json.dumps(event)}\n\n")
            if body["inputs"] == "broken" and index == 2:
                self.chunk('data:{"error":"Incomplete generation","error_type":"incomplete_generation"}\n\n')
                break
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, text: str) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(text.encode()), text.encode()))

    def fail(self, status: int, error: str, error_type: str) -> None:
        self.send({"error": error, "error_type": error_type}, status)

    def send(self, document: dict, status: int = 200) -> None:
        self.reply(status, json.dumps(document).encode(), "application/json")

    def reply(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


parser = argparse.ArgumentParser()
for flag in ("--model-id", "--hostname", "--shard-uds-path", "--sharded", "--master-addr"):
    parser.add_argument(flag)
for flag in ("--port", "--prometheus-port", "--num-shard", "--master-port", "--max-total-tokens", "--max-input-tokens"):
    parser.add_argument(flag, type=int)
parser.add_argument("--max-concurrent-requests", type=int, default=128)

if __name__ == "__main__":
    ARGS = parser.parse_args()
    print("Starting shard rank=0", flush=True)
    server = ThreadingHTTPServer((ARGS.hostname, ARGS.port), Handler)
    print("Shard ready in 0.1s rank=0", flush=True)
    server.serve_forever()
