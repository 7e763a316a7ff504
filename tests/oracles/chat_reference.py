"""Chats rendered by Jinja2 as transformers sets it up, and by the engine through eta-eval render."""
import datetime
import json
import subprocess

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """transformers' {% generation %}: its body, and nothing else that shows."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        return caller()


class Refused(Exception):
    """What a template says by raise_exception."""


def raise_exception(message):
    raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


NO_PARAMETERS = {"type": "object", "properties": {}}


def messages_of(chat):
    """Messages as apply_chat_template gets them."""
    made = []
    for message in chat["messages"]:
        if "reasoning" in message:
            message = {**message, "reasoning_content": message["reasoning"], "thinking": message["reasoning"]}
            del message["reasoning"]
        if calls := message.get("tool_calls"):
            calls = [{**({"id": call["id"]} if "id" in call else {}), "type": "function",
                      "function": {"name": call["name"], "arguments": call["arguments"]}}
                     for call in calls]
            message = {**message, "tool_calls": calls}
        made.append(message)
    return made


def tools_of(chat):
    return [{"type": "function", "function": tool if "parameters" in tool else
             {**tool, "parameters": NO_PARAMETERS}} for tool in chat.get("tools", [])] or None


def line_of(chat):
    """The chat as eta-eval render reads it, where Python's values are JSON."""
    line = dict(chat)
    line["messages"] = [
        {**message, "tool_calls": [{**{key: value for key, value in call.items() if key != "arguments"},
                                    "arguments_json": json.dumps(call["arguments"], ensure_ascii=False)}
                                   for call in message["tool_calls"]]}
        if "tool_calls" in message else message for message in chat["messages"]]
    if "tools" in chat:
        line["tools"] = [{**{key: value for key, value in tool.items() if key != "parameters"},
                          **({"parameters_json": json.dumps(tool["parameters"], ensure_ascii=False)}
                             if "parameters" in tool else {})} for tool in chat["tools"]]
    return line


def expected(template, chat, tokens):
    """The text, or the exception that rendering ends with."""
    variables = {"tools": tools_of(chat), "documents": None, "messages": messages_of(chat),
                 "add_generation_prompt": chat["add_generation_prompt"], **tokens}
    variables.update(json.loads(chat.get("variables_json") or "{}"))
    try:
        text = template.render(**variables)
        text.encode()  # surrogates have no UTF-8
        return text
    except Exception as error:  # whatever Python says, the engine has to say something too
        return error


def rendered(eta_eval, lines, tokens):
    """One answer of eta-eval render for each line."""
    flags = [f"--{name}={value}" for name, value in tokens.items()]
    run = subprocess.run([eta_eval, "render", *flags],
                         input="".join(json.dumps(line) + "\n" for line in lines).encode(),
                         capture_output=True, timeout=600)
    answers = [json.loads(line) for line in run.stdout.split(b"\n") if line]
    if run.returncode != 0 or len(answers) != len(lines):
        raise SystemExit(f"eta-eval render ended with {run.returncode} after {len(answers)} of "
                         f"{len(lines)} lines: {run.stderr.decode()}")
    return answers
