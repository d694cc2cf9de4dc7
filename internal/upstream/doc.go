// Package upstream sends requests to models that other servers run: vLLM, SGLang, llama.cpp, another Strobe, anything
// that speaks OpenAI's protocol.
//
// A model has one or more replicas. Requests that begin alike go to the same one, whose cache knows the beginning,
// unless it is much busier than the others. Replicas are asked for their health; one that fails is taken out until it
// answers again, and its requests are tried elsewhere as long as no byte of an answer was sent to the client.
//
// Keys are kept apart. What a client sent for authentication never leaves this server, and an upstream's key
// is cut out of whatever the upstream says.
//
// A Fleet may be used from any goroutine.
package upstream
