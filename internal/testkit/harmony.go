package testkit

// HarmonyTemplate is a small chat template in the format of gpt-oss, with the habits of the published one: one message
// of the system, which it shows as the developer's; one call for each message; reasoning under the name "thinking",
// before calls only and not beside other text.
const HarmonyTemplate = `<|start|>system<|message|>Reasoning: {{ reasoning_effort or "medium" }}
{{- "\nChannels: analysis, commentary, final<|end|>" }}
{%- set rest = messages %}
{%- if messages[0].role in ["system", "developer"] %}
    {%- set developer = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- endif %}
{%- if developer or tools %}
    {{- "<|start|>developer<|message|>" + (developer or "") }}
    {%- for tool in tools or [] %}
        {{- "\n// " + tool.function.description + "\ntype " + tool.function.name }}
        {{- " = " + tool.function.parameters | tojson }}
    {%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(call="") %}
{%- for m in rest %}
    {%- if m.role == "assistant" and "tool_calls" in m %}
        {%- set call = m.tool_calls[0].function %}
        {%- if m.content and m.thinking %}
            {{- raise_exception("content beside thinking") }}
        {%- elif m.content or "thinking" in m and m.thinking %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + (m.content or m.thinking) + "<|end|>" }}
        {%- endif %}
        {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}
        {{- call.arguments | tojson + "<|call|>" }}
        {%- set last.call = call.name %}
    {%- elif m.role == "assistant" %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + m.content + "<|end|>" }}
    {%- elif m.role == "tool" %}
        {{- "<|start|>functions." + last.call + " to=assistant<|channel|>commentary<|message|>" }}
        {{- m.content | tojson + "<|end|>" }}
    {%- elif m.role == "user" %}
        {{- "<|start|>user<|message|>" + m.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|start|>assistant" }}
{%- endif %}`
