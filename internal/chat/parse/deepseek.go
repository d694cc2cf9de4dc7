package parse

import "strings"

// deepSeek reads the calls of DeepSeek's models, which its distilled Qwen and Llama models write, too:
// NAME, a separator and {...} since V3.1; before that the word function, the separator, NAME on a line, and {...} as
// fenced code. The marker that closes the call follows.
type deepSeek struct {
	p     *Parser
	state deepSeekState
	text  strings.Builder // of the current state
	first string          // what stands before the separator
	value jsonScan
}

type deepSeekState uint8

const (
	deepSeekHead  deepSeekState = iota
	deepSeekAfter               // the separator
	deepSeekName
	deepSeekFence // before the brace, after a name on a line
	deepSeekArguments
	deepSeekTail
)

const (
	deepSeekCalls   = "<｜tool▁calls▁begin｜>"
	deepSeekCallEnd = "<｜tool▁calls▁end｜>"
	deepSeekBegin   = "<｜tool▁call▁begin｜>"
	deepSeekSep     = "<｜tool▁sep｜>"
	deepSeekEnd     = "<｜tool▁call▁end｜>"
	codeFence       = "```"
)

func newDeepSeek(p *Parser, _ bool) call { return &deepSeek{p: p, value: jsonScan{out: p.arguments}} }

func (d *deepSeek) feed(c byte) status {
	switch d.state {
	case deepSeekHead:
		d.text.WriteByte(c)
		head, complete := strings.CutSuffix(d.text.String(), deepSeekSep)
		if complete {
			d.first = strings.TrimSpace(head)
			d.next(deepSeekAfter)
		}
	case deepSeekAfter:
		if isJSONSpace(c) {
			return more
		}
		if c == '{' {
			return d.begin(d.first, c)
		}
		d.next(deepSeekName)
		d.text.WriteByte(c)
	case deepSeekName:
		if c == '\n' {
			d.first = strings.TrimSpace(d.text.String())
			d.next(deepSeekFence)
			return more
		}
		d.text.WriteByte(c)
	case deepSeekFence:
		if c != '{' {
			d.text.WriteByte(c)
			break
		}
		if s := strings.TrimSpace(d.text.String()); s != "" && s != codeFence && s != codeFence+"json" {
			return bad
		}
		return d.begin(d.first, c)
	case deepSeekArguments:
		return d.argument(c)
	case deepSeekTail:
		d.text.WriteByte(c)
		rest := strings.TrimSpace(d.text.String())
		if strings.HasPrefix(codeFence, rest) {
			return more
		}
		rest = strings.TrimSpace(strings.TrimPrefix(rest, codeFence))
		switch {
		case rest == deepSeekEnd:
			return done
		case !strings.HasPrefix(deepSeekEnd, rest):
			return bad
		}
	}
	if d.text.Len() > 2*maxName {
		return bad
	}
	return more
}

func (d *deepSeek) next(s deepSeekState) {
	d.state = s
	d.text.Reset()
}

// begin starts the call at the brace of its arguments.
func (d *deepSeek) begin(name string, c byte) status {
	if !d.p.begin(name) {
		return bad
	}
	d.next(deepSeekArguments)
	return d.argument(c)
}

func (d *deepSeek) argument(c byte) status {
	switch d.value.feed(c) {
	case scanMore:
		return more
	case scanDone:
		d.next(deepSeekTail)
		d.p.settle()
		return more
	}
	return bad
}
