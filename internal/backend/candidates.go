package backend

import "math"

// What Backend.Candidates leaves of a row: a head of four integers, then the ids, then the bits of their logits.
const (
	// MinCandidates is how many tokens a row has at least, if it has as many columns and the values differ.
	MinCandidates = 128
	// MaxCandidates is how many there is room for.
	MaxCandidates = 256
	// CandidateInts is what a row takes.
	CandidateInts = 4 + 2*MaxCandidates
)

// Candidates is what Backend.Candidates says of a row: its largest values, all that are at least Bound.
type Candidates []int32

// Len is the number of candidates. It is 0 when there is no room for as many as there are, and in a row with a value
// that is not finite: only the row itself helps then.
func (c Candidates) Len() int {
	if c[0] < 0 || c[0] > MaxCandidates {
		return 0
	}
	return int(c[0])
}

// IDs are the columns, the largest value first, the lower column among equals.
func (c Candidates) IDs() []int32 { return c[4:][:c.Len()] }

// Logits are the bits of the values of IDs.
func (c Candidates) Logits() []int32 { return c[4+MaxCandidates:][:c.Len()] }

// Bound is more than every value that is not among the candidates; -Inf if all are.
func (c Candidates) Bound() float32 { return math.Float32frombits(uint32(c[3])) }

// Total is the weight of the whole row (weight.Sum), 0 if it was not asked for.
func (c Candidates) Total() uint64 { return uint64(uint32(c[1])) | uint64(uint32(c[2]))<<32 }

// Set fills in the head. A number below 0 stands for a row with a value that is not finite.
func (c Candidates) Set(n int, bound float32, total uint64) {
	c[0], c[1], c[2], c[3] = int32(n), int32(uint32(total)), int32(uint32(total>>32)), int32(math.Float32bits(bound))
}
