"""A server of sentence embeddings. All servers of the pod use one copy of the model's weights.

    python -m gpushm publish models/all-minilm-l6-v2 weights             # in one container
    python embedding_server.py models/all-minilm-l6-v2 weights           # in each of the others

    curl -d '["A cat sleeps.", "Two dogs play."]' localhost:8080         # a list of embeddings
    curl localhost:8080                                                  # what the server uses

The folder has the configuration and the tokenizer; a server does not read the weights from it. Without PyTorch or
a GPU, for example on the simulated driver, nothing is computed: the server opens the weights, and tells their digest.
"""

import argparse
import hashlib
import http.server
import json
import sys
import time

import gpushm.tensors

try:
    import torch
except ImportError:
    torch = None

MAX_NBYTES = 1 << 20  # Of a request.


class Embedder:
    """The model, on the GPU."""

    def __init__(self, folder, name):
        import transformers
        from gpushm.integrations import transformers as shared

        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = shared.from_shared(transformers.AutoConfig.from_pretrained(folder), name)
        self.own_nbytes = torch.cuda.memory_allocated()

    @torch.inference_mode() if torch else lambda method: method
    def embed(self, sentences):
        tokens = self._tokenizer(sentences, padding=True, truncation=True, return_tensors="pt").to("cuda")
        states = self._model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        means = (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(means).tolist()


class Handler(http.server.BaseHTTPRequestHandler):
    embedder, state = None, {}
    timeout = 10  # Seconds that a client may keep a thread waiting.

    def do_GET(self):
        self._answer(200, self.state)

    def do_POST(self):
        try:
            sentences = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), MAX_NBYTES)))
        except (TypeError, ValueError):
            sentences = None
        if not isinstance(sentences, list) or not all(isinstance(each, str) for each in sentences):
            return self._answer(400, {"error": 'send a JSON list of sentences, such as ["A cat sleeps."]'})
        if self.embedder is None:
            return self._answer(503, {"error": "there is no GPU, so this server computes nothing"})
        self._answer(200, self.embedder.embed(sentences))

    def _answer(self, status, what):
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def digest(weights):
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(weights[name].numpy().tobytes())
    return found.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="configuration and tokenizer of the model")
    parser.add_argument("name", help="the buffer with its weights")
    parser.add_argument("--port", type=int, default=8080, help="of the HTTP server (default: 8080)")
    options = parser.parse_args()
    weights = gpushm.tensors.open(options.name, timeout=60)
    Handler.state = {"generation": weights.generation, "tensors": len(weights), "nbytes": weights.nbytes,
                     "digest": digest(weights)}
    begin = time.perf_counter()
    if torch is not None and torch.cuda.is_available():
        Handler.embedder = Embedder(options.folder, options.name)
        Handler.state["own_nbytes"] = Handler.embedder.own_nbytes
    Handler.state["ready_s"] = round(time.perf_counter() - begin, 3)
    print(f"server: {json.dumps(Handler.state)}", flush=True)
    http.server.ThreadingHTTPServer(("", options.port), Handler).serve_forever()


if __name__ == "__main__":
    sys.exit(main())
