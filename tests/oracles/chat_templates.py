"""Real chat templates: the engine's text equals Jinja2's to the byte, and what a user says stays text.

usage: chat_templates.py BUILD_FOLDER
"""
import ast
import importlib.util
import json
import pathlib
import random
import re
import sys

import chat_fuzz
import chat_reference

HERE = pathlib.Path(__file__).parent
CHATS = 60     # for each template, then again as guarded ones, and a quarter as private ones
TOOL_CHATS = 20  # likewise of chats with tools, for templates that write calls
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SENTINEL_BEGIN, SENTINEL_END = "\ue000", "\ue001"


def templates():
    """Name -> source: llama.cpp's collection, kept here, and those inside the package trl."""
    found = {f"llama.cpp/{name}": source for name, source in
             json.loads((HERE / "chat_templates" / "llama_cpp.json").read_text()).items()}
    package = importlib.util.find_spec("trl").submodule_search_locations[0]
    for path in sorted(pathlib.Path(package).glob("chat_templates/*.jinja")):
        found[f"trl/{path.name}"] = path.read_text()
    return found


def guarded(chat, source):
    """The chat with every text of a user's between two characters that nobody else writes. Without
    what the template takes texts apart at, or puts something else for: there it writes itself."""
    separators = [ast.literal_eval(text) for text in re.findall(
        r"""(?:split|replace)\(\s*('(?:[^'\\]|\\.)+'|"(?:[^"\\]|\\.)+")""", source)]

    def guard(text):
        for separator in separators:
            text = text.replace(separator, "")
        return SENTINEL_BEGIN + text + SENTINEL_END

    def guard_all(value):
        if isinstance(value, dict):
            return {key: guard_all(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [guard_all(inner) for inner in value]
        return guard(value) if isinstance(value, str) else value
    messages = []
    for message in chat["messages"]:
        made = {key: value if key in ("role", "tool_calls") else guard(value)
                for key, value in message.items()}
        if "tool_calls" in message:  # names and ids have alphabets and lengths of their own
            made["tool_calls"] = [{**call, "arguments": guard_all(call["arguments"])}
                                  for call in message["tool_calls"]]
        messages.append(made)
    for message, before in zip(messages, chat["messages"]):
        if message["role"] == "tool" and "tools" in chat:
            message.update({key: before[key] for key in ("name", "tool_call_id") if key in before})
    guarded_chat = {**chat, "messages": messages}
    if "tools" in chat:
        guarded_chat["tools"] = [{**tool, **({"description": guard(tool["description"])}
                                             if "description" in tool else {})}
                                 for tool in chat["tools"]]
    return guarded_chat


def control_of_user(answer):
    """The first stretch of a guarded text that lies in a control range; None if there is none."""
    data = answer["text"].encode()
    owned = bytearray(len(data))
    last = 0
    for begin, end in answer["control"]:
        if begin < last or end <= begin or end > len(data):
            return "ranges that are not sorted, disjoint and inside"
        last = end
        owned[begin:end] = b"\1" * (end - begin)
    begin_mark, end_mark = SENTINEL_BEGIN.encode(), SENTINEL_END.encode()
    at = 0
    while (begin := data.find(begin_mark, at)) >= 0:
        end = data.find(end_mark, begin)
        following = data.find(begin_mark, begin + 1)
        # Cut by the template: then only the mark itself is known to be the user's.
        whole = end >= 0 and (following < 0 or end < following)
        stop = end + len(end_mark) if whole else begin + len(begin_mark)
        if any(owned[begin:stop]):
            return data[begin:stop].decode(errors="replace")
        at = stop
    return None


def private(chance, chat):
    """The chat without variables, whose users say nothing but characters for private use."""
    def say():
        return "".join(chr(chance.randrange(0xE002, 0xE040)) for _ in range(chance.randrange(1, 5)))
    messages = [{key: value if key == "role" else say() for key, value in message.items()}
                for message in chat["messages"] if message["role"] != "critic"]
    return {"messages": messages, "add_generation_prompt": chat["add_generation_prompt"]}


def unowned(answer):
    """Of the text of a private chat, what neither a user nor the template wrote; without dates,
    numbers and what JSON puts around values, which are computed."""
    data = answer["text"].encode()
    rest, last = b"", 0
    for begin, end in [*answer["control"], [len(data), len(data)]]:
        rest += data[last:begin]
        last = end
    left = re.sub("[\ue000-\uf8ff]", "", rest.decode())
    left = re.sub(r"\d{4}-\d\d-\d\d|\d\d? [A-Z][a-z]+ \d{4}|[A-Z][a-z]+ \d\d?, \d{4}", "", left)
    return re.sub(r'[\d{}\[\]":, ]', "", left)


def main():
    eta_eval = pathlib.Path(sys.argv[1]) / "bin" / "eta-eval"
    environment = chat_reference.environment()
    chance = random.Random(31)
    differences, compared, refused, texts, tool_texts = [], 0, 0, 0, 0
    named = templates()
    for name, source in named.items():
        template = environment.from_string(source)
        chats = [chat_fuzz.chat(chance) for _ in range(CHATS)]
        chats += [guarded(chat, source) for chat in chats]
        chats += [private(chance, chat) for chat in chats[:CHATS // 4]]
        private_end = len(chats)
        if "tool_calls" in source:
            calling = [chat_fuzz.with_tools(chance) for _ in range(TOOL_CHATS)]
            chats += calling + [guarded(chat, source) for chat in calling]
        answers = chat_reference.rendered(
            eta_eval, [chat_reference.line_of({**chat, "template": source}) for chat in chats], TOKENS)
        for index, (chat, answer) in enumerate(zip(chats, answers)):
            compared += 1
            want = chat_reference.expected(template, chat, TOKENS)
            if isinstance(want, Exception):
                refused += 1
                if "error" not in answer:
                    differences.append((name, chat, f"refused: {want!r}", answer["text"]))
            elif answer.get("text") != want:
                differences.append((name, chat, want, answer.get("text", answer.get("error"))))
            else:
                texts += 1
                tool_texts += index >= private_end
                if (stolen := control_of_user(answer)) is not None:
                    differences.append((name, chat, "text of a user's", f"control: {stolen!r}"))
                elif 2 * CHATS <= index < private_end and (left := unowned(answer)):
                    differences.append((name, chat, "text of the template's", f"no control: {left!r}"))
    for name, chat, want, got in differences[:10]:
        print(f"{name}\n  chat: {json.dumps(chat, ensure_ascii=False)}\n  Jinja2: {want!r}\n  here: {got!r}")
    print(f"chat templates: {len(named)} real ones, {compared} chats (seed 31): {texts} texts equal to "
          f"Jinja2's, {tool_texts} of them with tools, {refused} refused by both, {len(differences)} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
