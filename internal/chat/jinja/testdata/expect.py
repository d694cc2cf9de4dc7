"""Fills in the expected results of cases.json with Python's Jinja.

Run in this folder with jinja2 3.1.6 installed: python3 expect.py
The environment is set up the way the transformers library sets up chat templates.
"""
import json
from datetime import datetime
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("support"), [], [], body).set_lineno(line)

    def support(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime(2025, 2, 3, 14, 5, 9).strftime(f)

data = json.load(open("cases.json"))
for case in data["cases"]:
    if "unsupported" in case:  # an error of ours, whatever Python does
        continue
    case.pop("ok", None)
    case.pop("err", None)
    try:
        case["ok"] = env.from_string(case["t"]).render(**data["vars"])
    except Exception as e:
        case["err"] = f"{type(e).__name__}: {e}"
with open("cases.json", "w") as f:
    f.write('{"vars": ' + json.dumps(data["vars"], ensure_ascii=False) + ',\n"cases": [\n')
    f.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in data["cases"]))
    f.write("\n]}\n")
