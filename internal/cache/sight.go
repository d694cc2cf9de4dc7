package cache

// Expect says how many tokens the whole prompt of the sequence has. A pass may run only a part of them.
func (s *Seq) Expect(tokens int) { s.expected = tokens }

// Expected is the number that Expect was given.
func (s *Seq) Expected() int { return s.expected }

// Limit makes tokens that are generated see the first tokens and the newest only, in layers that see everything
// otherwise: keep and window of them, and up to a page more of each. Prompts still see everything. A window of 0 is no
// limit. What was generated under a limit is not what it would have been without.
func (s *Seq) Limit(keep, window int) { s.kept, s.window = keep, window }

// hidden is how many slots the token at pos does not see, between those it does: whole pages. It depends on the
// position alone, so that a token sees the same in whatever batch it runs.
func (s *Segment) hidden(g *group, pos int) int {
	if s.Seq.window == 0 || s.Prompt || g.window > 0 || s.Block != nil {
		return 0
	}
	first := (s.Seq.kept + PageTokens - 1) / PageTokens * PageTokens
	return max(0, max(0, pos+1-s.Seq.window)/PageTokens*PageTokens-first)
}

// table returns the pages of a group without the hidden ones.
func (s *Segment) table(gi, hidden int) []int32 {
	t := s.Seq.tables[gi]
	if hidden == 0 {
		return t
	}
	first := (s.Seq.kept + PageTokens - 1) / PageTokens
	return append(append(make([]int32, 0, len(t)), t[:first]...), t[first+hidden/PageTokens:]...)
}
