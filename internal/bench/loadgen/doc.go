// Package loadgen measures servers with OpenAI's API from outside: throughput, time to the first token and gaps between
// tokens, as "vllm bench serve" does, for any number of clients.
//
// A target is a server, or one server with other fields in its requests. Several targets take turns in every round, so that
// whatever else the machine does hits all of them alike, and are compared round by round. Servers keep prefixes of prompts:
// no two runs on one server send the same prompt, except for the share of it that the settings ask for.
//
// The generator shares the machine with the server in most cases. So it reads streams without decoding them: only what it
// counts is looked for, and only the event with the usage is parsed.
package loadgen
