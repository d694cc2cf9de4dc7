package jinja

import (
	"fmt"
	"strings"
	"time"

	"strobe/internal/termtext"
)

// Error is a problem in a template or in rendering it. It prints as
// "name line N: message".
type Error struct {
	Template string
	Line     int // 1-based; 0 when no line is to blame
	Msg      string
	// Raised: the template itself called raise_exception, so the messages do
	// not suit the model and nothing is wrong with the template.
	Raised bool
	// Limit: the template ran into one of its Limits.
	Limit bool
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Template != "" {
		b.WriteString(e.Template)
		b.WriteByte(' ')
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	} else if e.Template != "" {
		b.WriteString(": ")
	}
	msg := e.Msg
	if len(msg) > maxMessage {
		msg = strings.ToValidUTF8(msg[:maxMessage], "") + "..."
	}
	b.WriteString(termtext.Printable(msg)) // a template of a file may raise anything
	return b.String()
}

// maxMessage bounds an error's text in bytes.
const maxMessage = 1000

// Limits bounds what one rendering may use. Zero fields take the defaults.
type Limits struct {
	Steps  int // expressions and statements evaluated; default 30 million
	Bytes  int // text and lists created, counted before; default 512 MiB
	Output int // bytes of the result; default 64 MiB
	Depth  int // nesting of calls, expressions and values; default 5000
}

// Options of one rendering.
type Options struct {
	Now    time.Time // what strftime_now sees; the zero value is the current time
	Limits Limits
	Done   <-chan struct{} // ends the rendering with an error when it is closed; nil never does
}

func orDefault(v, def int) int {
	if v > 0 {
		return v
	}
	return def
}

// Render runs the template on the given variables and returns its text.
func (t *Template) Render(vars *Dict, opt Options) (out string, err error) {
	r := &run{
		now:       opt.Now,
		done:      opt.Done,
		steps:     orDefault(opt.Limits.Steps, 30_000_000),
		bytes:     orDefault(opt.Limits.Bytes, 512<<20),
		maxOutput: orDefault(opt.Limits.Output, 64<<20),
		maxDepth:  orDefault(opt.Limits.Depth, 5000),
	}
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case *Error:
			if failure.Line == 0 {
				failure.Line = r.line
			}
			failure.Template = t.name
			out, err = "", failure
		default:
			panic(failure)
		}
	}()
	root := &scope{vars: map[string]any{}, parent: &scope{vars: globals}}
	if vars != nil {
		for i, k := range vars.keys {
			if s, ok := k.(string); ok {
				root.vars[s] = vars.values[i]
			}
		}
	}
	var b strings.Builder
	r.exec(t.body, root.child(), &b)
	return b.String(), nil
}

// errorf is an error of the template. Code that meets it panics with it; see Render.
func errorf(format string, args ...any) *Error { return &Error{Msg: fmt.Sprintf(format, args...)} }

func limitError(format string, args ...any) *Error {
	return &Error{Msg: fmt.Sprintf(format, args...), Limit: true}
}

// run is the state of one rendering.
type run struct {
	now       time.Time
	done      <-chan struct{}
	steps     int
	bytes     int
	maxOutput int
	maxDepth  int
	depth     int
	line      int // of the construct being evaluated
}

// doneCheck is how many steps pass between two looks at whether the result is still wanted.
const doneCheck = 1 << 10

// spend counts n steps.
func (r *run) spend(n int) {
	before := r.steps
	if r.steps -= n; r.steps < 0 {
		panic(limitError("the template did not finish within its step limit"))
	}
	if before/doneCheck != r.steps/doneCheck {
		select {
		case <-r.done:
			panic(limitError("the rendering was cancelled"))
		default:
		}
	}
}

// Work on texts and lists takes time in proportion to their length: so much of them counts as a step.
const (
	stepBytes = 64
	stepItems = 4
)

// touch counts the steps of an operation by the length of what it works on, before it is done.
func (r *run) touch(values ...any) {
	n := 0
	for _, v := range values {
		switch v := v.(type) {
		case string:
			n += len(v) / stepBytes
		case Markup:
			n += len(v) / stepBytes
		case *List:
			n += len(v.Items) / stepItems
		}
	}
	if n > 0 {
		r.spend(n)
	}
}

// touchArgs is touch for what is passed to a function, filter or test.
func (r *run) touchArgs(a *args) {
	r.touch(a.pos...)
	for _, k := range a.kw {
		r.touch(k.v)
	}
}

// filter runs a filter.
func (r *run) filter(fn filterFunc, v any, a *args) any {
	r.touch(v)
	r.touchArgs(a)
	return fn(r, v, a)
}

// test runs a test.
func (r *run) test(fn testFunc, v any, a *args) bool {
	r.touch(v)
	r.touchArgs(a)
	return fn(r, v, a)
}

// charge counts n bytes about to be allocated; callers charge before they allocate.
func (r *run) charge(n int) {
	if n < 0 || n > r.bytes {
		panic(limitError("the template uses more memory than allowed"))
	}
	r.bytes -= n
}

// chargeTimes charges n bytes count times without forming a product that overflows.
func (r *run) chargeTimes(n int, count int64) {
	if n > 0 && count > int64(r.bytes/n) {
		r.charge(-1)
	}
	r.charge(n * int(count))
}

// nested checks the nesting of a value being walked.
func (r *run) nested(depth int) {
	if depth > r.maxDepth {
		panic(limitError("value nested more than %d levels deep", r.maxDepth))
	}
}

// enter begins a level of nesting that "r.depth--" ends.
func (r *run) enter() {
	if r.depth++; r.depth > r.maxDepth {
		panic(limitError("nested more than %d levels deep", r.maxDepth))
	}
}

func (r *run) write(b *strings.Builder, s string) {
	if b.Len()+len(s) > r.maxOutput {
		panic(limitError("the text is longer than %d bytes", r.maxOutput))
	}
	r.charge(len(s))
	b.WriteString(s)
}

// scope holds the names of a block. Loops, macros and blocks that Jinja scopes
// get a child; if blocks share their parent's.
type scope struct {
	// A loop body has a handful of names, found fastest by looking at each;
	// past maxSmall they move to the map.
	names  []string
	values []any
	vars   map[string]any
	parent *scope
	// hole is the text that a filter or set block collected.
	hole any
}

const maxSmall = 12

func (s *scope) child() *scope { return &scope{parent: s} }

func (s *scope) set(name string, v any) {
	if s.vars != nil {
		s.vars[name] = v
		return
	}
	for i, n := range s.names {
		if n == name {
			s.values[i] = v
			return
		}
	}
	if len(s.names) < maxSmall {
		s.names = append(s.names, name)
		s.values = append(s.values, v)
		return
	}
	s.vars = map[string]any{name: v}
	for i, n := range s.names {
		s.vars[n] = s.values[i]
	}
	s.names, s.values = nil, nil
}

func (s *scope) get(name string) (any, bool) {
	for ; s != nil; s = s.parent {
		for i, n := range s.names {
			if n == name {
				return s.values[i], true
			}
		}
		if s.vars != nil {
			if v, ok := s.vars[name]; ok {
				return v, true
			}
		}
	}
	return nil, false
}
