package parse

import "strings"

// mistral reads NAME[ARGS]{...} after [TOOL_CALLS], the notation of Mistral's newer models. Some write the id of the
// call after its name: NAME[CALL_ID]ID[ARGS]{...}.
type mistral struct {
	p     *Parser
	head  strings.Builder // before the arguments
	value *jsonScan       // the arguments; nil before
}

func newMistral(p *Parser, _ bool) call { return &mistral{p: p} }

const (
	mistralArgs = "[ARGS]"
	mistralID   = "[CALL_ID]"
)

func (m *mistral) feed(c byte) status {
	if m.value != nil {
		if m.head.Len() > 0 { // nothing but white space may stand before the brace
			if isJSONSpace(c) {
				return more
			}
			if c != '{' {
				return bad
			}
			m.head.Reset()
		}
		switch m.value.feed(c) {
		case scanMore:
			return more
		case scanDone:
			return done
		}
		return bad
	}
	m.head.WriteByte(c)
	if m.head.Len() > 2*maxName {
		return bad
	}
	head, complete := strings.CutSuffix(m.head.String(), mistralArgs)
	if !complete {
		return more
	}
	name, _, _ := strings.Cut(head, mistralID)
	if !m.p.begin(strings.TrimSpace(name)) {
		return bad
	}
	m.value = &jsonScan{out: m.p.arguments}
	return more
}
