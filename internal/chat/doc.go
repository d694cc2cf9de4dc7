// Package chat turns a conversation into the prompt text a model was trained on.
//
// [Message] is one turn in the shape of the OpenAI API. [ParseTemplate] reads
// the Jinja template of a model file, [Template.Render] gives the prompt:
//
//	t, err := chat.ForModel(source)
//	prompt, err := t.Render(msgs, chat.Options{AddGenerationPrompt: true})
//
// A template sees what transformers would show it. Where clients and templates
// disagree about the shape of a message (arguments as text, content as parts,
// null content, the developer role) Render adapts the messages first, unless
// Options.Strict asks for them as they are. What the model answers is taken
// apart by the package chat/parse.
//
// A Template is safe for concurrent use.
package chat
