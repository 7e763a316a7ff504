// Chat templates that show tools and write calls, one of each form that models have. They are ours,
// made like those of Qwen, Llama 3 and Mistral as far as calls go.
#pragma once

namespace eta::testing {

inline constexpr char kTaggedTemplate[] =
    R"({%- if tools %}<|im_start|>system
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content.split('</think>')[-1] }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %})";

inline constexpr char kBareTemplate[] =
    R"({%- for message in messages %}
{%- if message.role == 'user' and loop.first and tools %}[user]{% for tool in tools %}
{{ tool | tojson(indent=4) }}{% endfor %}
{{ message.content }}[end]
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = message.tool_calls[0].function %}[assistant]
{{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}}[end]
{%- else %}[{{ message.role }}]{{ message.content }}[end]
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %})";

inline constexpr char kListTemplate[] =
    R"({{- bos_token }}
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}[INST]{{ message.content }}[/INST]
{%- elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- elif message.tool_calls %}[TOOL_CALLS][
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
{{- '' if loop.last else ', ' }}
{%- endfor %}]{{ eos_token }}
{%- else %}{{ message.content }}{{ eos_token }}
{%- endif %}
{%- endfor %})";

inline constexpr char kNamedTemplate[] =
    R"({{- bos_token }}
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}[INST]{{ message.content }}[/INST]
{%- elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- else %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}
{%- endfor %}{{ eos_token }}
{%- endif %}
{%- endfor %})";

}  // namespace eta::testing
