"""llama.cpp's server: the wheel's in this process, or a built one as a process of its own."""
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

FLASH_WORDS = {None: "auto", True: "on", False: "off"}


class LlamaClient:
    """Calls of a server that listens on `address`."""

    def __init__(self, address):
        self.address = address

    def post(self, path, body):
        request = urllib.request.Request(
            self.address + path, headers={"Content-Type": "application/json"},
            data=json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"llama.cpp: {error}: {error.read().decode()}") from error

    def tokens(self, text):
        return self.post("/tokenize", {"content": text, "parse_special": False})["tokens"]

    def complete(self, tokens, count, **more):
        """Completes a prompt by `count` tokens, the most probable ones."""
        answer = self.post("/v1/completions", {
            "prompt": tokens, "max_tokens": count, "temperature": 0.0, "ignore_eos": True,
            "cache_prompt": False} | more)
        if "choices" not in answer or answer["usage"]["completion_tokens"] != count:
            raise RuntimeError(f"llama.cpp: {answer}")
        return answer

    def answer(self, tokens, count, alternatives=1, **more):
        """The greedy answer to a prompt: per token its id and, of the most probable `alternatives`,
        {id: logprob}. That takes llama.cpp longer than the answer alone."""
        answer = self.complete(tokens, count, n_probs=alternatives, **more)
        content = answer["choices"][0]["logprobs"]["content"]
        return [(step["id"], {top["id"]: top["logprob"] for top in step["top_logprobs"]})
                for step in content]


class LlamaServer(LlamaClient):
    """The wheel's. No prompt but those in the slots is kept, since the copies take time."""

    def __init__(self, model, context, slots=1, threads=2, exact=False, flash=None):
        """`context` tokens in each slot. `exact`: float32 keys and values, and plain attention.
        `flash`: attention in one fused op; None: as llama.cpp chooses."""
        import xllamacpp

        kind = xllamacpp.llama_flash_attn_type
        flash_types = {None: kind.LLAMA_FLASH_ATTN_TYPE_AUTO,
                       True: kind.LLAMA_FLASH_ATTN_TYPE_ENABLED,
                       False: kind.LLAMA_FLASH_ATTN_TYPE_DISABLED}
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx = context * slots
        params.n_parallel = slots
        params.kv_unified = False
        params.cache_ram_mib = 0
        params.cache_idle_slots = False
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.verbosity = -1
        params.flash_attn_type = flash_types[False if exact else flash]
        if exact:
            params.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
            params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        self.server = xllamacpp.Server(params)
        super().__init__(self.server.listening_address)

    def close(self):
        self.server = None  # what ends it


class BuiltLlamaServer(LlamaClient):
    """The program llama-server at `program`, set as LlamaServer sets the wheel's."""

    def __init__(self, program, model, context, slots=1, threads=2, flash=None):
        with tempfile.NamedTemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            self.process = subprocess.Popen(
                [program, "--model", model, "--ctx-size", str(context * slots),
                 "--parallel", str(slots), "--no-kv-unified", "--cache-ram", "0",
                 "--no-cache-idle-slots", "--threads", str(threads),
                 "--threads-batch", str(threads), "--flash-attn", FLASH_WORDS[flash],
                 "--host", "127.0.0.1", "--port", "0", "--offline", "--no-ui",
                 "--log-colors", "off"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            super().__init__(self._address_in(log.name))

    def _address_in(self, log):
        """Where the server listens, once its log says so: then the model is loaded."""
        while True:
            ended = self.process.poll() is not None
            text = pathlib.Path(log).read_text(encoding="utf-8", errors="replace")
            found = re.search(r"listening on (http://\S+)\n", text)
            if found:
                return found[1]
            if ended:
                raise RuntimeError(f"llama-server ended with {self.process.returncode}:\n"
                                   + "\n".join(text.splitlines()[-5:]))
            time.sleep(0.1)

    def close(self):
        self.process.terminate()
        self.process.wait()
