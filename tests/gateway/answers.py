"""What a gateway's users get is what eta.v1 gives, to the token."""

import http.client
import itertools
import json
import math
import random
import re
import sys
import time

import grpc
from eta_api import ROOT, data
from fleet import CONTEXT, Gateway, wait_for

sys.path.insert(0, str(ROOT / "tests/oracles"))
import tokenizer_texts  # noqa: E402

TEXTS = 200
QUESTION = "What is a fjord?"
BEGINNING = "Once upon a time there was a lighthouse keeper who"
GREEDY = {"temperature": 0}


def check(server, folder):
    servers = [server("one"), server("two")]
    for one in servers:
        one.ready()
    api = servers[0].api
    with Gateway(folder, servers) as gateway:
        check_tokenizer(gateway, api)
        check_texts(gateway, api)
        check_ids(gateway, api)
        check_seeds(gateway, api)
        check_stop(gateway, api)
        check_logprobs(gateway, api)
        check_formats(gateway, servers[0].build)
        check_refusals(gateway)
        check_disconnect(gateway, servers)
        prompts = warm(servers)
        check_routes(gateway, prompts, servers)
    with Gateway(folder, servers) as another:
        check_routes(another, prompts, servers)
    print("a gateway's answers are those of eta.v1")


def own_chat(api, text, sampling, tokens, **more):
    return api.generate(chat={"messages": [{"role": "CHAT_ROLE_USER", "text": data(text)}]}, sampling=sampling,
                        stopping={"maxTokens": tokens}, output={"tokenIds": True}, **more)  # fmt: skip


def own_text(api, text, sampling, tokens, **stopping):
    return api.generate(text=data(text), sampling=sampling, stopping={"maxTokens": tokens} | stopping,
                        output={"tokenIds": True})  # fmt: skip


def texts():
    """Special tokens; prose and code; many scripts, and what nobody would write, without end."""
    draw = random.Random(50)
    pieces = [text[at : at + 300] for text in itertools.islice(tokenizer_texts.files(ROOT), 40)
              for at in range(0, min(len(text), 3000), 300)]  # fmt: skip
    yield from ("<|im_end|>\n<|im_start|>system\nObey.", "a<|im_end|>b", *draw.sample(pieces, TEXTS // 2))
    yield from (text[:200] for text in tokenizer_texts.generated(seed=50))


def check_tokenizer(gateway, api):
    """Special tokens that a text spells are those tokens to the gateway."""
    compared = 0
    for text in texts():
        try:
            ours = api.tokenize(text=data(text), parseSpecial=True, addBeginning=False)
        except grpc.RpcError as error:  # the gateway leaves such bytes out
            assert "has no token for byte" in error.details(), error
            continue
        theirs = gateway.call("/v1/tokenize", {"model": gateway.model, "prompt": text, "add_special_tokens": False})
        assert theirs.json["tokens"] == ours, (text, theirs.body, ours)
        compared += 1
        if compared == TEXTS:
            return


def check_texts(gateway, api):
    own = own_chat(api, QUESTION, GREEDY, 24)
    reply = gateway.chat(QUESTION, **GREEDY, max_tokens=24)
    choice, usage = reply.json["choices"][0], reply.json["usage"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (own.text, "length"), (reply.body, own.text)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (own.started.prompt_tokens, 24), usage
    reply = gateway.chat(QUESTION, **GREEDY, max_tokens=24, stream=True, stream_options={"include_usage": True})
    choices = [event["choices"][0] for event in reply.events if event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == own.text, reply.body
    assert choices[-1]["finish_reason"] == "length", reply.body
    assert reply.events[-1]["usage"]["completion_tokens"] == 24, reply.body
    own = own_text(api, BEGINNING, GREEDY, 24)
    reply = gateway.complete(BEGINNING, **GREEDY, max_tokens=24)
    assert reply.json["choices"][0]["text"] == own.text, (reply.body, own.text)
    reply = gateway.complete(BEGINNING, **GREEDY, max_tokens=24, stream=True)
    assert streamed(reply) == {0: own.text}, (reply.body, own.text)


def streamed(reply):
    """The texts of a streamed completion, by their index."""
    found = {}
    for choice in (choice for event in reply.events for choice in event["choices"]):
        found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


def check_ids(gateway, api):
    ids = api.tokenize(text=data(BEGINNING))
    own = api.generate(tokenIds={"ids": ids}, sampling=GREEDY, stopping={"maxTokens": 24}, output={"tokenIds": True})
    reply = gateway.call("/generate", {"model": gateway.model, "input_ids": ids,
                                       "sampling_params": {"temperature": 0, "max_new_tokens": 24}})  # fmt: skip
    assert reply.json[0]["output_ids"] == own.ids, (reply.body, own.ids)


def check_seeds(gateway, api):
    """Several answers of one request have seeds that count up."""
    asked = {"temperature": 1, "top_p": 0.95, "seed": 7}
    own = {i: own_text(api, BEGINNING, {"temperature": 1, "topP": 0.95, "seed": 7 + i}, 12).text for i in range(2)}
    assert own[0] != own[1], own
    reply = gateway.complete(BEGINNING, **asked, n=2, max_tokens=12)
    assert {choice["index"]: choice["text"] for choice in reply.json["choices"]} == own, (reply.body, own)
    assert reply.json["usage"]["completion_tokens"] == 24, reply.body
    reply = gateway.complete(BEGINNING, **asked, n=2, max_tokens=12, stream=True)
    assert streamed(reply) == own, (reply.body, own)


def check_stop(gateway, api):
    """The server ends the generation, not the gateway: by its count of tokens."""
    free = own_text(api, BEGINNING, GREEDY, 24)
    stop = free.text[len(free.text) // 2 :][:4]
    own = own_text(api, BEGINNING, GREEDY, 24, stopStrings=[stop])
    used = own.finished.usage.output_tokens
    assert 0 < used < 24, own.finished
    reply = gateway.complete(BEGINNING, **GREEDY, max_tokens=24, stop=[stop])
    choice = reply.json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (own.text, "stop"), (reply.body, own.text)
    assert reply.json["usage"]["completion_tokens"] == used, (reply.body, used)
    reply = gateway.complete(BEGINNING, **GREEDY, max_tokens=24, stop=[stop], stream=True)
    assert streamed(reply) == {0: own.text}, (reply.body, own.text)


def check_logprobs(gateway, api):
    own = api.generate(chat={"messages": [{"role": "CHAT_ROLE_USER", "text": data(QUESTION)}]}, sampling=GREEDY,
                       stopping={"maxTokens": 6}, output={"logprobs": 3})  # fmt: skip
    unary = gateway.chat(QUESTION, **GREEDY, max_tokens=6, logprobs=True, top_logprobs=3)
    stream = gateway.chat(QUESTION, **GREEDY, max_tokens=6, logprobs=True, top_logprobs=3, stream=True)
    told = [choice["logprobs"]["content"] for event in stream.events for choice in event["choices"]
            if choice.get("logprobs")]  # fmt: skip
    for theirs in (unary.json["choices"][0]["logprobs"]["content"], list(itertools.chain(*told))):
        assert len(theirs) == len(own.logprobs) == 6, theirs
        for token, mine in zip(theirs, own.logprobs, strict=True):
            tops = [top["logprob"] for top in token["top_logprobs"]]
            assert len(tops) == 3, token
            for value, known in zip([token["logprob"], *tops], [mine.logprob, *(top.logprob for top in mine.top)],
                                    strict=True):  # fmt: skip
                assert math.isclose(value, known, rel_tol=1e-5, abs_tol=1e-6), (token, mine)


def in_json(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def check_formats(gateway, build):
    """What a user of OpenAI's API asks for binds the answer; one that is cut off ends with `length`."""
    if "ETA_GRAMMAR:BOOL=ON" not in (build / "CMakeCache.txt").read_text():
        print("formats: not asked for (built without formats of answers)")
        return
    schema = {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"],
              "additionalProperties": False}  # fmt: skip
    reply = gateway.chat(QUESTION, **GREEDY, max_tokens=64, response_format=in_json(schema))
    choice = reply.json["choices"][0]
    assert choice["finish_reason"] == "stop", reply.body
    assert isinstance(json.loads(choice["message"]["content"])["deep"], bool), reply.body
    reply = gateway.complete(BEGINNING, **GREEDY, max_tokens=64, regex=" lit [0-9]{2} lamps")
    assert re.fullmatch(" lit [0-9]{2} lamps", reply.json["choices"][0]["text"]), reply.body
    reply = gateway.chat(QUESTION, **GREEDY, max_tokens=2, response_format={"type": "json_object"})
    assert reply.json["choices"][0]["finish_reason"] == "length", reply.body
    reply = gateway.chat(QUESTION, max_tokens=2, response_format=in_json({"not": {}}))
    message = "Failed to start generation: sampling_params.json_schema: "
    assert reply.status == 400 and reply.error.startswith(message), reply.body


def check_refusals(gateway):
    """The text of a refusal reaches the user."""
    params = "Failed to start generation: sampling_params."
    for fields, status, message in (
        ({"prompt": "word " * CONTEXT}, 400, f"This model's maximum context length is {CONTEXT} tokens."),
        ({"model": "another"}, 404, "No worker available for model 'another'"),
        ({"prompt": ""}, 400, "Failed to start generation: tokenized.input_ids: must not be empty"),
        ({"max_tokens": 20000}, 400, params + "max_tokens: must be 1 to 16384"),
        ({"max_tokens": CONTEXT}, 400, params + f"max_tokens: 1 prompt tokens and {CONTEXT} max_tokens together pass"),
        ({"regex": "a" * 70000}, 400, params + "regex: at most 65536 bytes"),
    ):
        reply = gateway.complete(**{"prompt": "Once", "max_tokens": 2} | fields)
        assert reply.status == status and reply.error.startswith(message), (fields.keys(), reply.status, reply.body)


def check_disconnect(gateway, servers):
    """Who goes away, streaming or not, ends the generation within a second."""
    long = {"max_tokens": 3000, "ignore_eos": True}

    def running():
        return sum(server.api.running() for server in servers)

    assert running() == 0
    stream = gateway.open_chat(QUESTION, **long, stream=True)
    for _ in range(3):
        assert stream.readline(), "the stream has ended"
    assert running() == 1
    stream.close()
    wait_for("the end of a stream", lambda: running() == 0, seconds=1)
    unary = http.client.HTTPConnection("127.0.0.1", gateway.port)
    unary.request("POST", "/v1/chat/completions", json.dumps(gateway.chat_fields(QUESTION, long)),
                  {"Content-Type": "application/json"})  # fmt: skip
    wait_for("the call", lambda: running() == 1)
    unary.close()
    wait_for("the end of a call", lambda: running() == 0, seconds=1)


def warm(servers):
    """Prompts that are cached, each on one server, without the gateway."""
    prompts = [f"{number}. " + BEGINNING * 14 for number in range(4)]
    for number, prompt in enumerate(prompts):
        own_text(servers[number % 2].api, prompt, GREEDY, 1)
    time.sleep(1)  # the gateway hears of it
    return prompts


def check_routes(gateway, prompts, servers):
    """Prompts go where they are cached, since the servers' events say so."""
    for number, prompt in enumerate(prompts):
        reply = gateway.complete(prompt, **GREEDY, max_tokens=1)
        chosen = reply.trace["selections"][0]
        assert chosen["worker"] == servers[number % 2].url, (number, chosen)
        assert chosen["prediction"]["branch"] == "event_hit", (number, chosen)
        assert reply.json["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128, reply.body
