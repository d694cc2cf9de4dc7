package jinja

import (
	"errors"
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
	Bytes  int // text and lists made, counted when made; default 512 MiB
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
func (t *Template) Render(vars *Dict, opt Options) (string, error) {
	r := &run{
		now:       opt.Now,
		done:      opt.Done,
		steps:     orDefault(opt.Limits.Steps, 30_000_000),
		bytes:     orDefault(opt.Limits.Bytes, 512<<20),
		maxOutput: orDefault(opt.Limits.Output, 64<<20),
		maxDepth:  orDefault(opt.Limits.Depth, 5000),
	}
	root := &scope{vars: map[string]any{}, parent: &scope{vars: globals}}
	if vars != nil {
		for i, k := range vars.keys {
			if s, ok := k.(string); ok {
				root.vars[s] = vars.values[i]
			}
		}
	}
	var out strings.Builder
	if err := r.exec(t.body, root.child(), &out); err != nil {
		e := r.wrap(err)
		e.Template = t.name
		return "", e
	}
	return out.String(), nil
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

func (r *run) wrap(err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Msg: err.Error()}
	}
	if e.Line == 0 {
		e.Line = r.line
	}
	return e
}

func limitError(format string, args ...any) error {
	return &Error{Msg: fmt.Sprintf(format, args...), Limit: true}
}

func (r *run) step() error { return r.spend(1) }

// spend counts n steps.
func (r *run) spend(n int) error {
	before := r.steps
	if r.steps -= n; r.steps < 0 {
		return limitError("the template did not finish within its step limit")
	}
	if before/doneCheck != r.steps/doneCheck {
		select {
		case <-r.done:
			return limitError("the rendering was cancelled")
		default:
		}
	}
	return nil
}

// doneCheck is how many steps pass between two looks at whether anybody still wants the result.
const doneCheck = 1 << 10

// Work on texts and lists takes time in proportion to their length: so much of them counts as a step.
const (
	stepBytes = 64
	stepItems = 4
)

// touch counts the steps of an operation by the length of what it works on, before it is done.
func (r *run) touch(values ...any) error {
	n := 0
	for _, v := range values {
		switch v := v.(type) {
		case string:
			n += len(v) / stepBytes
		case Markup:
			n += len(v) / stepBytes
		case *List:
			n += len(v.Items) / stepItems
		case *view:
			n += len(v.items) / stepItems
		}
	}
	if n == 0 {
		return nil
	}
	return r.spend(n)
}

// touchArgs is touch for a value and what is passed with it.
func (r *run) touchArgs(v any, a *args) error {
	if err := r.touch(v); err != nil {
		return err
	}
	for _, k := range a.kw {
		if err := r.touch(k.v); err != nil {
			return err
		}
	}
	return r.touch(a.pos...)
}

// filter runs a filter.
func (r *run) filter(fn filterFunc, v any, a *args) (any, error) {
	if err := r.touchArgs(v, a); err != nil {
		return nil, err
	}
	return fn(r, v, a)
}

// test runs a test.
func (r *run) test(fn testFunc, v any, a *args) (bool, error) {
	if err := r.touchArgs(v, a); err != nil {
		return false, err
	}
	return fn(r, v, a)
}

// charge counts n bytes about to be made; callers charge before they allocate.
func (r *run) charge(n int) error {
	if n < 0 || n > r.bytes {
		return limitError("the template uses more memory than allowed")
	}
	r.bytes -= n
	return nil
}

// nested checks the nesting of a value being walked.
func (r *run) nested(depth int) error {
	if depth > r.maxDepth {
		return limitError("value nested more than %d levels deep", r.maxDepth)
	}
	return nil
}

func (r *run) enter() error {
	if r.depth++; r.depth > r.maxDepth {
		return limitError("nested more than %d levels deep", r.maxDepth)
	}
	return nil
}

func (r *run) write(b *strings.Builder, s string) error {
	if b.Len()+len(s) > r.maxOutput {
		return limitError("the text is longer than %d bytes", r.maxOutput)
	}
	if err := r.charge(len(s)); err != nil {
		return err
	}
	b.WriteString(s)
	return nil
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

var errBreak, errContinue = errors.New("break outside a loop"), errors.New("continue outside a loop")

func (r *run) exec(body []node, sc *scope, b *strings.Builder) error {
	if err := r.enter(); err != nil {
		return err
	}
	defer func() { r.depth-- }()
	for _, n := range body {
		if err := r.step(); err != nil {
			return err
		}
		if err := r.stmt(n, sc, b); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) stmt(n node, sc *scope, b *strings.Builder) error {
	switch n := n.(type) {
	case *dataStmt:
		return r.write(b, n.s)
	case *outStmt:
		r.line = n.line
		v, err := r.eval(n.e, sc)
		if err != nil {
			return err
		}
		s, err := r.str(v)
		if err != nil {
			return err
		}
		return r.write(b, s)
	case *ifStmt:
		for i, c := range n.conds {
			r.line = n.lines[i]
			v, err := r.eval(c, sc)
			if err != nil {
				return err
			}
			if truth(v) {
				return r.exec(n.bodies[i], sc, b)
			}
		}
		return r.exec(n.els, sc, b)
	case *forStmt:
		r.line = n.line
		v, err := r.eval(n.iter, sc)
		if err != nil {
			return err
		}
		return r.loop(n, v, sc, b, 0)
	case *setStmt:
		r.line = n.line
		v, err := r.eval(n.e, sc)
		if err != nil {
			return err
		}
		return r.assign(n.target, v, sc)
	case *setBlockStmt:
		v, err := r.capture(n.body, n.filters, sc, n.line)
		if err != nil {
			return err
		}
		return r.assign(n.target, v, sc)
	case *filterStmt:
		v, err := r.capture(n.body, n.e, sc, n.line)
		if err != nil {
			return err
		}
		s, err := r.str(v)
		if err != nil {
			return err
		}
		return r.write(b, s)
	case *macroStmt:
		sc.set(n.name, &macro{n, sc})
		return nil
	case *callStmt:
		return r.callBlock(n, sc, b)
	case *withStmt:
		r.line = n.line
		c := sc.child()
		for i, t := range n.targets {
			v, err := r.eval(n.values[i], sc)
			if err != nil {
				return err
			}
			if err := r.assign(t, v, c); err != nil {
				return err
			}
		}
		return r.exec(n.body, c, b)
	case *scopeStmt:
		return r.exec(n.body, sc.child(), b)
	case *breakStmt:
		return errBreak
	case *continueStmt:
		return errContinue
	}
	return fmt.Errorf("internal: cannot run %T", n)
}

// capture renders body and passes the text through filters, if any.
func (r *run) capture(body []node, filters node, sc *scope, line int) (any, error) {
	var s strings.Builder
	c := sc.child()
	if err := r.exec(body, c, &s); err != nil {
		return nil, err
	}
	r.line = line
	if filters == nil {
		return s.String(), nil
	}
	return r.eval(filters, &scope{parent: sc, hole: s.String()})
}

func (r *run) assign(target node, v any, sc *scope) error {
	switch t := target.(type) {
	case *nameExpr:
		sc.set(t.name, v)
		return nil
	case *nsTarget:
		o, _ := sc.get(t.name)
		ns, ok := o.(*namespace)
		if !ok {
			return errors.New("cannot assign attribute on non-namespace object")
		}
		ns.d.Set(t.attr, v)
		return nil
	}
	items := target.(*tupleTarget).items
	vals, err := r.iterate(v)
	if err != nil {
		return fmt.Errorf("cannot unpack non-iterable %s object", typeName(v))
	}
	if len(vals) != len(items) {
		return fmt.Errorf("cannot unpack %d values into %d names", len(vals), len(items))
	}
	for i, t := range items {
		if err := r.assign(t, vals[i], sc); err != nil {
			return err
		}
	}
	return nil
}

// loopVar is the "loop" of a for statement.
type loopVar struct {
	items   []any
	i       int
	depth   int // of recursion, 0-based
	n       *forStmt
	sc      *scope // around the loop
	changed any
	seen    bool // changed holds a value
}

func (r *run) loop(n *forStmt, v any, sc *scope, b *strings.Builder, depth int) error {
	items, err := r.iterate(v)
	if err != nil {
		return err
	}
	if n.cond != nil {
		all := items
		items = nil
		for _, it := range all {
			if err := r.step(); err != nil {
				return err
			}
			c := sc.child()
			if err := r.assign(n.target, it, c); err != nil {
				return err
			}
			ok, err := r.eval(n.cond, c)
			if err != nil {
				return err
			}
			if truth(ok) {
				items = append(items, it)
			}
		}
	}
	if len(items) == 0 {
		return r.exec(n.els, sc.child(), b)
	}
	lv := &loopVar{items: items, depth: depth, n: n, sc: sc}
	for i, it := range items {
		if err := r.step(); err != nil {
			return err
		}
		lv.i = i
		c := sc.child()
		c.set("loop", lv)
		r.line = n.line
		if err := r.assign(n.target, it, c); err != nil {
			return err
		}
		if err := r.exec(n.body, c, b); err == errBreak {
			break
		} else if err != nil && err != errContinue {
			return err
		}
	}
	return nil
}

func (lv *loopVar) attr(name string) any {
	n := len(lv.items)
	switch name {
	case "index":
		return int64(lv.i + 1)
	case "index0":
		return int64(lv.i)
	case "first":
		return lv.i == 0
	case "last":
		return lv.i == n-1
	case "length":
		return int64(n)
	case "revindex":
		return int64(n - lv.i)
	case "revindex0":
		return int64(n - lv.i - 1)
	case "depth":
		return int64(lv.depth + 1)
	case "depth0":
		return int64(lv.depth)
	case "previtem":
		if lv.i > 0 {
			return lv.items[lv.i-1]
		}
		return undefined{"there is no previous item"}
	case "nextitem":
		if lv.i+1 < n {
			return lv.items[lv.i+1]
		}
		return undefined{"there is no next item"}
	case "cycle":
		return &function{name: "cycle", call: func(r *run, a *args) (any, error) {
			if len(a.pos) == 0 {
				return nil, errors.New("no items for cycling given")
			}
			return a.pos[lv.i%len(a.pos)], nil
		}}
	case "changed":
		return &function{name: "changed", call: func(r *run, a *args) (any, error) {
			now := &List{Items: a.pos, tuple: true}
			if lv.seen {
				if eq, err := r.equal(lv.changed, now, 0); eq || err != nil {
					return false, err
				}
			}
			lv.changed, lv.seen = now, true
			return true, nil
		}}
	}
	return undefinedItem(lv, name)
}

// macro is a macro bound to the scope it was defined in.
type macro struct {
	m  *macroStmt
	sc *scope
}

func (r *run) callMacro(m *macro, a *args) (any, error) {
	sc := m.sc.child()
	d := m.m
	noDefault := len(d.args) - len(d.defaults)
	explicitCaller := false
	for i, name := range d.args {
		explicitCaller = explicitCaller || name == "caller"
		if i < len(a.pos) {
			sc.set(name, a.pos[i])
			continue
		}
		if v, ok := a.take(name); ok {
			sc.set(name, v)
			continue
		}
		if i < noDefault {
			sc.set(name, undefined{"parameter " + pyQuote(name) + " was not provided"})
			continue
		}
		v, err := r.eval(d.defaults[i-noDefault], sc)
		if err != nil {
			return nil, err
		}
		sc.set(name, v)
	}
	if d.caller && !explicitCaller {
		v, ok := a.take("caller")
		if !ok {
			v = undefined{"No caller defined"}
		}
		sc.set("caller", v)
	}
	if d.kwargs {
		kw := NewDict()
		for _, k := range a.kw {
			kw.Set(k.name, k.v)
		}
		sc.set("kwargs", kw)
	} else if len(a.kw) > 0 {
		return nil, fmt.Errorf("macro %s takes no keyword argument %s", pyQuote(d.name), pyQuote(a.kw[0].name))
	}
	extra := []any(nil)
	if len(a.pos) > len(d.args) {
		extra = a.pos[len(d.args):]
	}
	if d.varargs {
		sc.set("varargs", &List{Items: extra, tuple: true})
	} else if len(extra) > 0 {
		return nil, fmt.Errorf("macro %s takes not more than %d argument(s)", pyQuote(d.name), len(d.args))
	}
	var b strings.Builder
	if err := r.exec(d.body, sc, &b); err != nil {
		return nil, err
	}
	return b.String(), nil
}

func (r *run) callBlock(n *callStmt, sc *scope, b *strings.Builder) error {
	r.line = n.line
	f, err := r.eval(n.call.f, sc)
	if err != nil {
		return err
	}
	a, err := r.args(&n.call.args, sc)
	if err != nil {
		return err
	}
	a.kw = append(a.kw, kwValue{"caller", &macro{n.body, sc}})
	v, err := r.call(f, a)
	if err != nil {
		return err
	}
	s, err := r.str(v)
	if err != nil {
		return err
	}
	return r.write(b, s)
}

// args are evaluated call arguments.
type args struct {
	pos []any
	kw  []kwValue
}

type kwValue struct {
	name string
	v    any
}

// take removes a keyword argument.
func (a *args) take(name string) (any, bool) {
	for i, k := range a.kw {
		if k.name == name {
			a.kw = append(a.kw[:i:i], a.kw[i+1:]...)
			return k.v, true
		}
	}
	return nil, false
}

// absent marks an optional argument that was not given.
type absent struct{}

func given(v any) bool { _, no := v.(absent); return !no }

// bind maps the arguments to parameter names as a Python call would. The
// first required ones must be given; others come back as absent{}.
func (a *args) bind(fn string, required int, names ...string) ([]any, error) {
	if len(a.pos) > len(names) {
		return nil, fmt.Errorf("%s takes at most %d argument(s), got %d", fn, len(names), len(a.pos))
	}
	out := make([]any, len(names))
	for i := range names {
		out[i] = absent{}
	}
	copy(out, a.pos)
next:
	for _, k := range a.kw {
		for i, n := range names {
			if n == k.name {
				if given(out[i]) {
					return nil, fmt.Errorf("%s got multiple values for argument '%s'", fn, n)
				}
				out[i] = k.v
				continue next
			}
		}
		return nil, fmt.Errorf("%s got an unexpected keyword argument '%s'", fn, k.name)
	}
	for i := range required {
		if !given(out[i]) {
			return nil, fmt.Errorf("%s is missing its argument '%s'", fn, names[i])
		}
	}
	return out, nil
}

func (r *run) args(n *callArgs, sc *scope) (*args, error) {
	a := &args{}
	for _, e := range n.pos {
		v, err := r.eval(e, sc)
		if err != nil {
			return nil, err
		}
		a.pos = append(a.pos, v)
	}
	if n.star != nil {
		v, err := r.eval(n.star, sc)
		if err != nil {
			return nil, err
		}
		items, err := r.iterate(v)
		if err != nil {
			return nil, err
		}
		if err := r.charge(16 * len(items)); err != nil {
			return nil, err
		}
		a.pos = append(a.pos, items...)
	}
	for _, e := range n.kw {
		v, err := r.eval(e.e, sc)
		if err != nil {
			return nil, err
		}
		a.kw = append(a.kw, kwValue{e.name, v})
	}
	if n.dict != nil {
		v, err := r.eval(n.dict, sc)
		if err != nil {
			return nil, err
		}
		d, ok := v.(*Dict)
		if !ok {
			return nil, fmt.Errorf("argument after ** must be a mapping, not %s", typeName(v))
		}
		if err := r.charge(32 * d.Len()); err != nil {
			return nil, err
		}
		for i, k := range d.keys {
			s, ok := text(k)
			if !ok {
				return nil, errors.New("keywords must be strings")
			}
			a.kw = append(a.kw, kwValue{s, d.values[i]})
		}
	}
	return a, nil
}

func (r *run) call(f any, a *args) (any, error) {
	switch f := f.(type) {
	case *function:
		if err := r.touchArgs(nil, a); err != nil {
			return nil, err
		}
		return f.call(r, a)
	case *macro:
		return r.callMacro(f, a)
	case *loopVar:
		if !f.n.recursive {
			return nil, errors.New("loop is not recursive: the for tag needs 'recursive'")
		}
		v, err := a.bind("loop", 1, "iterable")
		if err != nil {
			return nil, err
		}
		var b strings.Builder
		if err := r.loop(f.n, v[0], f.sc, &b, f.depth+1); err != nil {
			return nil, err
		}
		return b.String(), nil
	case undefined:
		return nil, f.err()
	}
	return nil, fmt.Errorf("'%s' object is not callable", typeName(f))
}
