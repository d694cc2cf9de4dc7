// Package fleet simulates several servers of one model behind the router of package upstream, to plan past one machine.
//
// How long a server takes is measured on one machine (Measure); who gets a request is decided by the same code that
// decides it in a front server (upstream.Policy, upstream.Key). In between is a model of a server: slots, a queue,
// steps that run a chunk of prompts beside a token of every stream, and a prefix cache that forgets what was used least
// recently.
//
// A simulation depends on its settings alone: the same seed gives the same numbers everywhere.
package fleet
