// Package server offers models over HTTP: OpenAI's chat completions, completions, responses,
// embeddings and models, Anthropic's messages, and native endpoints for health, metrics and
// tokens, with a web page at "/".
//
//	s := server.New(server.Config{Models: server.Single("model", eng)})
//	err := s.Serve(ctx, listener) // until ctx ends, then drains
//
// A request passes the middleware (middleware.go), is decoded by the file of its protocol
// (openai_*.go, anthropic.go, native.go) into types of that protocol, becomes a conversation or a
// prompt (prompt.go) and then an engine.Request. What the engine generates is taken apart by a
// reply (reply.go), which every protocol turns into its own JSON, streamed (sse.go) or whole. One
// function decides which status an error has (errors.go).
//
// The handlers start goroutines only to read several choices of one request at once, and wait for
// them. A generation ends with the context of its HTTP request, so a client that leaves frees its slot at
// the engine's next step.
package server
