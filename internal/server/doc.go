// Package server offers models over HTTP in four protocols: OpenAI's, Anthropic's, Ollama's and that of llama.cpp's
// server, with metrics and a web page at "/".
//
//	s := server.New(server.Config{Models: server.Single("model", eng)})
//	err := s.Serve(ctx, listener) // until ctx ends, then drains
//
// The files form four layers:
//
//   - server.go, middleware.go and conns.go accept requests: connections, keys, origins, the log line.
//   - openai_*.go, anthropic.go, ollama*.go and llamacpp_*.go are the protocols. Each is a type that embeds core and
//     lists its endpoints. It decodes a request into types of its own, turns that into a conversation, and shows the
//     replies in its own JSON. No protocol uses a name of another one (TestProtocolsApart).
//   - exchange.go is the way all of them take: core.converse finds the model, prepares a reply for each answer, and
//     reads what is generated. The model is one of this server (model.go) or of another one (remote.go).
//   - What they share: conversation.go, sampling.go, formats.go, constrain.go and prompts.go (what is asked for),
//     reply.go, usage.go and stream.go (what is answered), json.go and errors.go.
//
// A request for a model of another server that knows the path is passed on as it is (endpoint.go).
//
// The handlers start goroutines only to read several choices of one request at once, and wait for
// them. A generation ends with the context of its HTTP request, so a client that leaves frees its slot at
// the engine's next step.
package server
