// Package sample chooses the next token from a row of logits.
//
// A Sampler applies, in this fixed order:
//
//  1. constraint mask (a grammar, for instance): forbidden tokens become -Inf
//  2. logit bias
//  3. repetition, frequency and presence penalties over the last RepeatLastN tokens
//  4. DRY penalty (tokens that would continue a repeated sequence)
//  5. top-k
//  6. typical
//  7. top-p
//  8. min-p
//  9. temperature, then one random draw
//
// Params.Steps leaves steps out or orders them anew. Steps that few use stand among
// them: top-n-sigma before top-k, XTC after min-p, a temperature that follows the
// entropy, and Mirostat in place of 5 to 8. With one of them, or another order, a
// sampler looks at whole rows, one step after the other (chain.go).
//
// Each of 6 to 8 sees probabilities at temperature 1, renormalised over what the
// steps before it left, and keeps at least one token. With Temp <= 0 the token is
// the largest logit after step 4 and the steps 5 to 9 are skipped. Among equals the
// lowest id comes first, everywhere.
//
// NaN logits count as -Inf, and tokens at -Inf are never chosen. When no token is
// left, Sample returns -1.
//
// With Temp > 0 a call to Sample takes exactly one number from the generator,
// whatever the candidates, and with XTC two; otherwise none. The generator (PCG) and all arithmetic
// that decides a choice are the same on every platform, so a seed repeats a run.
//
// A Sampler belongs to one sequence and one goroutine. In the steady state it
// allocates nothing. What a call returns as a slice is valid until the next call.
package sample
