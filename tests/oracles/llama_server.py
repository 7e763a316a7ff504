"""llama.cpp's server in this process."""
import json
import urllib.request

import xllamacpp


class LlamaServer:
    def __init__(self, model, context, slots=1, threads=2, exact=False):
        """`context` tokens in each slot. `exact`: float32 keys and values, and plain attention."""
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx = context * slots
        params.n_parallel = slots
        params.kv_unified = False
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.verbosity = -1
        if exact:
            params.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
            params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(params)

    def tokens(self, text):
        request = urllib.request.Request(
            self.server.listening_address + "/tokenize", headers={"Content-Type": "application/json"},
            data=json.dumps({"content": text, "parse_special": False}).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]

    def complete(self, tokens, count, **more):
        """Completes a prompt by `count` tokens, the most probable ones."""
        answer = self.server.handle_completions({
            "prompt": tokens, "max_tokens": count, "temperature": 0.0, "ignore_eos": True,
            "cache_prompt": False} | more)
        if "choices" not in answer or answer["usage"]["completion_tokens"] != count:
            raise RuntimeError(f"llama.cpp: {answer}")
        return answer

    def answer(self, tokens, count, alternatives=1):
        """The greedy answer to a prompt: per token its id and, of the most probable `alternatives`,
        {id: logprob}. That takes llama.cpp longer than the answer alone."""
        answer = self.complete(tokens, count, n_probs=alternatives)
        content = answer["choices"][0]["logprobs"]["content"]
        return [(step["id"], {top["id"]: top["logprob"] for top in step["top_logprobs"]})
                for step in content]
