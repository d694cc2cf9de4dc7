// Package jinja renders the chat templates that model files carry.
//
// It implements the Jinja language as the transformers library configures it:
// an immutable sandbox with trim_blocks and lstrip_blocks, loop controls, the
// generation tag, tojson as json.dumps without ASCII escaping, raise_exception
// and strftime_now. Python's rules for truth, str, repr, comparison and
// undefined values are followed, because templates depend on them: a template
// that raises in Python raises here too, so a model is never fed a prompt its
// authors did not intend.
//
// A template comes from a downloaded file and is not trusted. It can neither
// reach the file system nor the network, it cannot change the values it was
// given, and [Limits] bounds its work, its memory and its depth.
//
// What no published chat template uses is left out: filters such as batch and
// groupby, padding of strings, most format specifiers, recursive loops. It is
// an [*Error] with the line and the construct, when the template is parsed
// wherever the source shows it outside a condition, else when it is reached.
//
// A [Template] is immutable after [Parse] and safe for concurrent use.
package jinja
