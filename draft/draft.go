// Package draft is the contract between the speculative loop and whatever guesses tokens.
//
// A guess is a Proposal: for each coming position a few candidates with log-probabilities.
// The loop turns it into a chain or a tree and lets the target verify it. A wrong guess
// costs time, never correctness.
package draft

// Candidate is a guessed token.
type Candidate struct {
	ID   int32
	LogP float32
}

// Proposal is a guess for the tokens after the last one. At(i) lists candidates for the i-th of
// them, best first.
type Proposal struct {
	Source string
	At     [][]Candidate
}

// Len returns the number of guessed positions.
func (p *Proposal) Len() int { return len(p.At) }

// Cut drops the positions from n on.
func (p *Proposal) Cut(n int) {
	if n < len(p.At) {
		p.At = p.At[:n]
	}
}

// Chain appends the best candidate of every position to dst.
func (p *Proposal) Chain(dst []int32) []int32 {
	for _, c := range p.At {
		dst = append(dst, c[0].ID)
	}
	return dst
}

// Sane cuts the proposal before the first position that has no usable best candidate: an id
// outside the vocabulary or a probability that is not a number.
func (p *Proposal) Sane(vocab int) {
	for i, c := range p.At {
		if len(c) == 0 || c[0].ID < 0 || int(c[0].ID) >= vocab || c[0].LogP != c[0].LogP {
			p.At = p.At[:i]
			return
		}
	}
}
