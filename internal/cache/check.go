package cache

import (
	"slices"

	"strobe/internal/backend"
	"strobe/internal/invariants"
)

// check panics unless the pages and the tape of a sequence are in order. It does nothing in ordinary builds.
func (s *Seq) check() {
	if !invariants.Enabled || s.closed {
		return
	}
	for gi, g := range s.m.groups {
		table := s.tables[gi]
		for p := g.firstPage(s.n); p < (s.n+PageTokens-1)/PageTokens; p++ {
			invariants.Check(p < len(table) && table[p] >= 0, "group %d: page %d of %d tokens is missing", gi, p, s.n)
		}
		for _, page := range table {
			invariants.Check(page < 0 || g.refs[page] > 0, "group %d: page %d is in a table and free", gi, page)
		}
		live := 0
		for _, refs := range g.refs {
			if refs > 0 {
				live++
			}
		}
		invariants.Check(live <= g.pool.Used(), "group %d: %d pages are referenced, %d are in use", gi, live, g.pool.Used())
	}
	invariants.Check(s.pending <= s.taped, "%d rows are pending, %d are on the tape", s.pending, s.taped)
}

// check panics unless every row of a batch sees and writes pages of its sequence; a written page is not shared.
func (m *Memory) check(b *Batch, writes bool) {
	if !invariants.Enabled {
		return
	}
	for i := range b.Plans {
		for k := range b.Plans[i].KV {
			p := &b.Plans[i].KV[k]
			at := slices.IndexFunc(m.groups, func(g *group) bool { return g.pool == p.Pool })
			for r := range p.Slot {
				checkRow(m.groups[at], p, r, writes)
			}
		}
	}
}

func checkRow(g *group, p *backend.KVPlan, r int, writes bool) {
	table := p.Tables[p.Seg[r]]
	page := func(slot int32) int32 {
		if at := int(slot) / PageTokens; slot >= 0 && at < len(table) {
			return table[at]
		}
		return -1
	}
	if writes {
		at := page(p.Slot[r])
		invariants.Check(at >= 0 && g.refs[at] == 1, "row %d writes slot %d to page %d, which is missing or shared", r,
			p.Slot[r], at)
	}
	for slot := p.Lo[r]; slot < p.Hi[r]; slot += PageTokens {
		invariants.Check(page(slot) >= 0, "row %d sees slot %d, which has no page", r, slot)
	}
	invariants.Check(p.Lo[r] >= 0 && (p.Hi[r] <= p.Lo[r] || page(p.Hi[r]-1) >= 0), "row %d sees slots %d to %d", r,
		p.Lo[r], p.Hi[r])
	if p.Extra != nil {
		invariants.Check(slices.IsSorted(p.Extra[r]), "row %d sees slots %v in a tree", r, p.Extra[r])
	}
}
