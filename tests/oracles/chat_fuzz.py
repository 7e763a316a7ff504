"""Chats by chance, with a fixed seed: roles as models and users mix them, contents that break things."""
import json

# What a user says is taken apart by templates at some of these; none may become a control token.
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "</s>", "<s>", "[INST]", "[/INST]", "<think>",
           "</think>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>",
           "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>", "<tool_call>", "</tool_call>",
           "<tool_response>", "</tool_response>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>",
           "<|START_OF_TURN_TOKEN|>", "<|channel|>", "<|message|>", "<|return|>", "<<SYS>>", "<</SYS>>",
           "/no_think", "/think", "[TOOL_CALLS]", "<|python_tag|>", "<|observation|>", "<unused0>"]
WORDS = ["hello", "Straße", "ΣΊΣΥΦΟΣ", "ǆungla", "İstanbul", "日本語", "안녕", "🙂👩‍👩‍👧", "ﬁne", "don't", "a\"b",
         "{{ bos_token }}", "{% raw %}", "<b>&amp;</b>", "\\n", "x = 1;", "1.5", "-3", "null", "\u00a0",
         "\u2028", "\u0000", "\u007f", "e\u0301", "\U0001d518"]
SPACE = ["", " ", "\n", "\n\n", "\t", "  ", "\r\n", "\u3000"]
NAMES = ["get_weather", "search", "python", "brave_search", "a_b", "Ünïcode"]


def content(random):
    parts = []
    for _ in range(random.randrange(7)):
        parts.append(random.choice(random.choice([WORDS, WORDS, CONTROL, SPACE])))
        if random.random() < 0.4:
            parts.append(random.choice(SPACE))
    return "".join(parts)


def schema(random, depth=2):
    kind = random.choice(["string", "integer", "number", "boolean", "array", "object", ["string", "null"]])
    made = {"type": kind}
    if random.random() < 0.7:
        made["description"] = content(random)
    if kind == "string" and random.random() < 0.3:
        made["enum"] = [random.choice(WORDS) for _ in range(random.randrange(1, 4))]
    if kind == "array" and depth:
        made["items"] = schema(random, depth - 1)
    if kind == "object" and depth:
        made["properties"] = {random.choice(NAMES): schema(random, depth - 1)
                              for _ in range(random.randrange(3))}
        if random.random() < 0.5:
            made["required"] = list(made["properties"])
    if random.random() < 0.2:
        made["default"] = random.choice([None, True, 1, 2.5, 1e20, "x", [], {}])
    if random.random() < 0.1:
        made["nullable"] = True
    return made


def tool(random):
    parameters = {"type": "object",
                  "properties": {name: schema(random) for name in random.sample(NAMES, random.randrange(4))}}
    if random.random() < 0.7:
        parameters["required"] = list(parameters["properties"])[:random.randrange(3)]
    made = {"name": random.choice(NAMES), "description": content(random), "parameters": parameters}
    if random.random() < 0.2:
        made["return"] = schema(random)
    return {"type": "function", "function": made} if random.random() < 0.85 else made


def arguments(random, depth=2):
    """A JSON value as a model gives it for a parameter; the outermost is an object."""
    kind = random.randrange(8 if depth else 5)
    if kind == 0:
        return random.choice([0, -7, 12345678901, 2.5, 1e20, -0.0])
    if kind == 1:
        return random.choice([True, False, None])
    if kind < 5:
        return content(random)
    if kind == 5:
        return [arguments(random, depth - 1) for _ in range(random.randrange(3))]
    return {random.choice(NAMES): arguments(random, depth - 1) for _ in range(random.randrange(3))}


def with_tools(random):
    """A chat as the API has it, in which tools are called: with roles that take turns as templates
    want them. Values that the API takes as JSON are Python's here."""
    names = random.sample([name for name in NAMES if name.isascii()], random.randrange(1, 4))
    tools = []
    for name in names:
        made = {"name": name}
        if random.random() < 0.9:
            made["description"] = content(random)
        if random.random() < 0.9:
            made["parameters"] = {"type": "object",
                                  "properties": {key: schema(random) for key in
                                                 random.sample(NAMES, random.randrange(4))}}
        tools.append(made)
    messages = []
    if random.random() < 0.4:
        messages.append({"role": "system", "content": content(random)})
    for _ in range(random.randrange(1, 4)):
        messages.append({"role": "user", "content": content(random)})
        if random.random() < 0.7:
            calls = []
            for at in range(random.choice([1, 1, 2])):
                call = {"name": random.choice(names),
                        "arguments": {key: arguments(random) for key in
                                      random.sample(NAMES, random.randrange(3))}}
                if random.random() < 0.9:
                    call = {"id": f"call{len(messages):04}{at}", **call}
                calls.append(call)
            messages.append({"role": "assistant", "content": random.choice(["", "", content(random)]),
                             **({"reasoning": content(random)} if random.random() < 0.4 else {}),
                             "tool_calls": calls})
            for call in calls:
                answer = {"role": "tool", "content": content(random), "name": call["name"]}
                if "id" in call:
                    answer["tool_call_id"] = call["id"]
                messages.append(answer)
        messages.append({"role": "assistant", "content": content(random)})
    if random.random() < 0.7:
        messages.pop()
    return {"messages": messages, "tools": tools, "add_generation_prompt": random.random() < 0.6}


def variables(random):
    made = {}
    if random.random() < 0.4:
        made["tools"] = [tool(random) for _ in range(random.randrange(4))]
    if random.random() < 0.15:
        made["documents"] = [{"title": content(random), "text": content(random), "doc_id": i}
                             for i in range(random.randrange(3))]
    for name, values in {"enable_thinking": [True, False], "thinking": [True, False],
                         "date_string": ["26 Jul 2024"], "reasoning_effort": ["low", "high"],
                         "builtin_tools": [["browser", "python"], []], "tools_in_user_message": [True, False],
                         "custom_tools": [None], "keep_past_thinking": [True], "unused": [1, 2.0, None, [{}]],
                         "model_identity": ["You are ETA."], "preserve_thinking": [True]}.items():
        if random.random() < 0.12:
            made[name] = random.choice(values)
    return made


def chat(random):
    messages = []
    if random.random() < 0.4:
        messages.append({"role": "system", "content": content(random)})
    role = "user" if random.random() < 0.95 else "assistant"
    for _ in range(random.randrange(7)):
        message = {"role": role, "content": content(random)}
        if role == "assistant" and random.random() < 0.2:
            message["reasoning"] = content(random)
        if random.random() < (0.9 if role == "tool" else 0.05):
            message["name"] = random.choice(NAMES)
        if random.random() < (0.8 if role == "tool" else 0.02):
            message["tool_call_id"] = random.choice(["call_1", "a1b2c3d4e", content(random)])
        messages.append(message)
        following = {"user": "assistant", "assistant": "user", "tool": "assistant", "system": "user"}
        role = following.get(role, "user")
        if random.random() < 0.1:
            role = random.choice(["system", "user", "assistant", "tool", "tool", "critic"])
    made = {"messages": messages, "add_generation_prompt": random.random() < 0.6}
    extra = variables(random)
    if extra or random.random() < 0.5:
        made["variables_json"] = json.dumps(extra, ensure_ascii=random.random() < 0.5)
    return made
