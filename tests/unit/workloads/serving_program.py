"""A small OpenAI-compatible server with faults: `serving_program.py PORT FAULT [TOKEN_S]`. Standard library only.

It answers one request at a time with four tokens, each of which takes TOKEN_S seconds, so that latencies grow with the rate.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

port, fault = int(sys.argv[1]), sys.argv[2]
token_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
answered = 0
busy = threading.Lock()


class Requests(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = f"# TYPE answers_total counter\nanswers_total {answered}\n# TYPE busy gauge\nbusy 0.5\n"
        self.reply(200, page if self.path == "/metrics" else "{}")

    def do_POST(self) -> None:
        global answered
        answered += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if fault == "dies under load":
            print("no more memory for keys", flush=True)
            os._exit(7)
        if fault == "answers garbage":
            return self.reply(200, "<html>")
        if fault == "fails sometimes" and answered % 4 == 0:
            return self.reply(500, json.dumps({"error": {"message": "queue is full"}}))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with busy:
            for number in range(4):
                time.sleep(token_s)
                text = {"choices": [{"text": "a ", "finish_reason": "length" if number == 3 else None}]}
                self.wfile.write(f"data: {json.dumps(text)}\n\n".encode())
                self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def reply(self, status: int, text: str, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


if fault == "dies at start":
    print("RuntimeError: no weights", flush=True)
    sys.exit(3)
if fault == "never ready":
    print("loading weights", flush=True)
    time.sleep(600)
if fault == "port taken once" and not Path("second").exists():
    Path("second").touch()
    print("OSError: [Errno 98] Address already in use", flush=True)
    sys.exit(1)
if fault == "ignores SIGTERM":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if fault == "becomes a daemon" and os.fork():
    sys.exit(0)
if fault == "becomes a daemon":
    os.setsid()
if fault == "leaves a worker" and not os.fork():
    os.setsid()
    os.environ.clear()
    time.sleep(600)
server = ThreadingHTTPServer(("127.0.0.1", port), Requests)
print(f"ready, pid {os.getpid()}", flush=True)
server.serve_forever()
