package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// A mutant is a change of one place of a file.
type mutant struct {
	Operator string `json:"operator"`
	What     string `json:"what"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	runs     int    // the line whose tests are tried: a profile counts the condition of a case only with what it guards
	edits    []edit // in order
}

// An edit replaces the bytes of a file from one offset to another.
type edit struct {
	from, to int
	text     string
}

// apply returns a changed copy of a file.
func (m *mutant) apply(src []byte) []byte {
	var out []byte
	at := 0
	for _, e := range m.edits {
		out = append(append(out, src[at:e.from]...), e.text...)
		at = e.to
	}
	return append(out, src[at:]...)
}

// The operators put in the bugs that reviews miss; each is one small change that still compiles.
const (
	opBorder  = "border"  // < for <=, a 1 that is not added or subtracted
	opError   = "error"   // an error that is lost or not returned
	opLock    = "lock"    // a lock that is not taken
	opCleanup = "cleanup" // a Close, Remove or cancel that is missing
	opKey     = "key"     // a key or a comparison that leaves a component out
	opNegate  = "negate"  // the opposite of a condition
	opBranch  = "branch"  // a continue or break that is missing
	opSwap    = "swap"    // two arguments of one type in the wrong order
)

// finder collects the mutants of one file.
type finder struct {
	fset  *token.FileSet
	info  *types.Info
	src   []byte
	name  string
	keys  map[types.Type]bool // types of keys of maps in the package
	stack []ast.Node          // what is being looked at, outermost first
	out   []mutant
}

// find lists the mutants of a file.
func find(fset *token.FileSet, info *types.Info, file *ast.File, src []byte) []mutant {
	f := &finder{fset: fset, info: info, src: src, name: fset.Position(file.Pos()).Filename, keys: map[types.Type]bool{}}
	for _, t := range info.Types {
		if m, ok := t.Type.(*types.Map); ok {
			f.keys[m.Key()] = true
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			f.stack = f.stack[:len(f.stack)-1]
			return true
		}
		f.visit(n)
		f.stack = append(f.stack, n)
		return true
	})
	return f.out
}

func (f *finder) offset(p token.Pos) int       { return f.fset.Position(p).Offset }
func (f *finder) text(n ast.Node) string       { return string(f.src[f.offset(n.Pos()):f.offset(n.End())]) }
func (f *finder) typeOf(e ast.Expr) types.Type { return f.info.TypeOf(e) }

func (f *finder) add(operator, what string, at ast.Node, edits ...edit) {
	line := f.fset.Position(at.Pos()).Line
	runs := line
	for i, n := range f.stack {
		if c, ok := n.(*ast.CaseClause); ok && at.Pos() < c.Colon {
			runs = f.fset.Position(f.stack[i-2].Pos()).Line // the switch, around its block
		}
	}
	f.out = append(f.out, mutant{Operator: operator, What: what, File: f.name, Line: line, runs: runs, edits: edits})
}

// replace is an edit of a whole node.
func (f *finder) replace(n ast.Node, text string) edit {
	return edit{f.offset(n.Pos()), f.offset(n.End()), text}
}

func (f *finder) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.ReturnStmt:
		f.returned(n)
	case *ast.AssignStmt:
		f.lost(n)
	case *ast.FuncDecl:
		if n.Body != nil {
			f.locks(n.Body)
		}
	case *ast.FuncLit:
		f.locks(n.Body)
	case *ast.ExprStmt:
		if c, ok := n.X.(*ast.CallExpr); ok {
			f.cleanup(n, c)
			f.hashed(n, c)
		}
	case *ast.DeferStmt:
		f.cleanup(n, n.Call)
	case *ast.CompositeLit:
		f.literal(n)
	case *ast.IfStmt:
		f.add(opNegate, "the condition is negated", n.Cond, f.replace(n.Cond, "!("+f.text(n.Cond)+")"))
	case *ast.BranchStmt:
		f.branch(n)
	case *ast.CallExpr:
		f.swap(n)
		if f.inKey() && n.Ellipsis == 0 {
			f.variadic(n)
		}
	}
}

// binary changes comparisons at their border, drops a 1, and drops a part of what makes things equal.
func (f *finder) binary(n *ast.BinaryExpr) {
	op := edit{f.offset(n.OpPos), f.offset(n.OpPos) + len(n.Op.String()), ""}
	other := map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
	switch {
	case other[n.Op] != "":
		op.text = other[n.Op]
		f.add(opBorder, n.Op.String()+" becomes "+op.text, n, op)
	case (n.Op == token.ADD || n.Op == token.SUB) && isOne(n.Y):
		f.add(opBorder, n.Op.String()+"1 is dropped", n, edit{f.offset(n.X.End()), f.offset(n.End()), ""})
	case n.Op == token.LAND:
		for _, side := range []ast.Expr{n.X, n.Y} {
			if f.equality(side) {
				rest := n.Y
				if side == n.Y {
					rest = n.X
				}
				f.add(opKey, "not compared: "+f.text(side), side, f.replace(n, "("+f.text(rest)+")"))
			}
		}
	}
}

func isOne(e ast.Expr) bool {
	l, ok := e.(*ast.BasicLit)
	return ok && l.Value == "1"
}

// equality reports whether an expression compares two values for equality.
func (f *finder) equality(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		return e.Op == token.EQL && !f.isNil(e.Y)
	case *ast.CallExpr:
		return keyish.MatchString(callName(e)) && len(e.Args) > 0
	}
	return false
}

func (f *finder) isNil(e ast.Expr) bool { return f.info.Types[e].IsNil() }

func (f *finder) isError(e ast.Expr) bool {
	t := f.typeOf(e)
	return t != nil && types.Identical(t, types.Universe.Lookup("error").Type())
}

// returned returns nil instead of an error.
func (f *finder) returned(n *ast.ReturnStmt) {
	if len(n.Results) == 0 {
		return
	}
	last := n.Results[len(n.Results)-1]
	if f.isError(last) && !f.isNil(last) {
		f.add(opError, "nil instead of the error", last, f.replace(last, "nil"))
	}
}

// lost drops the error of a call, so that an earlier one is looked at, or none.
func (f *finder) lost(n *ast.AssignStmt) {
	if len(n.Rhs) != 1 {
		return
	}
	if _, ok := n.Rhs[0].(*ast.CallExpr); !ok {
		return
	}
	last, ok := n.Lhs[len(n.Lhs)-1].(*ast.Ident)
	if !ok || last.Name == "_" || !f.isError(last) {
		return
	}
	f.add(opError, "the error of the call is lost", n, f.replace(last, "_"))
}

// locks drops all uses of one lock in a function. Functions inside of it are functions of their own.
func (f *finder) locks(body *ast.BlockStmt) {
	first := map[string]ast.Node{}
	edits := map[string][]edit{}
	ast.Inspect(body, func(n ast.Node) bool {
		var call ast.Expr
		switch s := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ExprStmt:
			call = s.X
		case *ast.DeferStmt:
			call = s.Call
		default:
			return true
		}
		c, ok := call.(*ast.CallExpr)
		if !ok || len(c.Args) > 0 {
			return true
		}
		sel, ok := c.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Lock", "Unlock", "RLock", "RUnlock"}, sel.Sel.Name) {
			return true
		}
		of := f.text(sel.X)
		if first[of] == nil {
			first[of] = n
		}
		edits[of] = append(edits[of], f.replace(n, "_ = "+f.text(sel)))
		return true
	})
	for of, at := range first {
		f.add(opLock, of+" is not locked", at, edits[of]...)
	}
}

var cleanups = regexp.MustCompile(`(?i)^(close|remove|free|release|stop|abort|cancel|delete|drop|forget|discard|truncate|` +
	`clear|kill|shutdown|reset|give)`)

// cleanup drops a call that gives something back.
func (f *finder) cleanup(n ast.Stmt, c *ast.CallExpr) {
	if !cleanups.MatchString(callName(c)) {
		return
	}
	text := "{}"
	switch fun := c.Fun.(type) {
	case *ast.Ident:
		if _, ok := f.info.Uses[fun].(*types.Builtin); !ok {
			text = "_ = " + fun.Name // it may be used nowhere else
		}
	case *ast.SelectorExpr:
		text = "_ = " + f.text(fun)
	}
	f.add(opCleanup, "missing: "+f.text(n), n, f.replace(n, text))
}

// callName is the last part of what is called.
func callName(c *ast.CallExpr) string {
	switch fun := c.Fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		return fun.Sel.Name
	}
	return ""
}

var keyish = regexp.MustCompile(`(?i)(key|print|ident|hash|chain|equal|same|name)`)

// inKey reports whether the function around makes a name for something: it hashes, or its name says so.
func (f *finder) inKey() bool {
	for _, n := range slices.Backward(f.stack) {
		d, ok := n.(*ast.FuncDecl)
		if !ok || d.Body == nil {
			continue
		}
		if keyish.MatchString(d.Name.Name) {
			return true
		}
		hashes := false
		ast.Inspect(d.Body, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			hashes = hashes || ok && f.isHash(e)
			return !hashes
		})
		return hashes
	}
	return false
}

// isHash reports whether an expression is a hash to write to.
func (f *finder) isHash(e ast.Expr) bool {
	t := f.typeOf(e)
	if t == nil {
		return false
	}
	for _, name := range []string{"Write", "Sum", "BlockSize"} {
		if o, _, _ := types.LookupFieldOrMethod(t, true, nil, name); o == nil {
			return false
		}
	}
	return true
}

// hashed leaves out what a statement writes to a hash.
func (f *finder) hashed(n ast.Stmt, c *ast.CallExpr) {
	of := slices.ContainsFunc(c.Args, f.isHash)
	if sel, ok := c.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, "Write") {
		of = of || f.isHash(sel.X)
	}
	if of {
		f.add(opKey, "not hashed: "+f.text(n), n, f.replace(n, "{}"))
	}
}

// literal leaves a component out of a key: of a structure that is one, or of a list where names are made.
func (f *finder) literal(n *ast.CompositeLit) {
	t := f.typeOf(n)
	if t == nil || len(n.Elts) < 2 {
		return
	}
	_, isStruct := t.Underlying().(*types.Struct)
	_, isSlice := t.Underlying().(*types.Slice)
	isKey := f.keys[t]
	if named, ok := t.(*types.Named); ok {
		isKey = isKey || keyish.MatchString(named.Obj().Name())
	}
	if !(isStruct && isKey || isSlice && f.inKey()) {
		return
	}
	for i, e := range n.Elts {
		if _, keyed := e.(*ast.KeyValueExpr); keyed || isSlice {
			f.add(opKey, "left out: "+f.text(e), e, f.without(n.Elts, i))
		} else if zero := zeroOf(f.typeOf(e)); zero != "" && f.text(e) != zero {
			f.add(opKey, "left out: "+f.text(e), e, f.replace(e, zero))
		}
	}
}

// variadic leaves out one of the values that a call joins to a name.
func (f *finder) variadic(n *ast.CallExpr) {
	sig, ok := f.typeOf(n.Fun).(*types.Signature)
	if !ok || !sig.Variadic() {
		return
	}
	from := sig.Params().Len() - 1
	if len(n.Args)-from < 2 {
		return
	}
	for i := from; i < len(n.Args); i++ {
		f.add(opKey, "left out: "+f.text(n.Args[i]), n.Args[i], f.without(n.Args, i))
	}
}

// without drops an expression and a comma.
func (f *finder) without(list []ast.Expr, i int) edit {
	if i+1 < len(list) {
		return edit{f.offset(list[i].Pos()), f.offset(list[i+1].Pos()), ""}
	}
	return edit{f.offset(list[i-1].End()), f.offset(list[i].End()), ""}
}

// zeroOf is the zero value of a basic type as it is written; empty for others.
func zeroOf(t types.Type) string {
	b, ok := t.Underlying().(*types.Basic)
	switch {
	case !ok:
		return ""
	case b.Info()&types.IsNumeric != 0:
		return "0"
	case b.Info()&types.IsString != 0:
		return `""`
	case b.Info()&types.IsBoolean != 0:
		return "false"
	}
	return ""
}

// branch drops a continue, or a break of a loop.
func (f *finder) branch(n *ast.BranchStmt) {
	if n.Tok != token.CONTINUE && n.Tok != token.BREAK {
		return
	}
	for _, s := range slices.Backward(f.stack) {
		switch s.(type) {
		case *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
			if n.Tok == token.BREAK && n.Label == nil {
				return // it may be the end of a case anyway
			}
		case *ast.ForStmt, *ast.RangeStmt:
			f.add(opBranch, n.Tok.String()+" is missing", n, f.replace(n, "{}"))
			return
		}
	}
}

// swap exchanges neighbours among arguments that have one type.
func (f *finder) swap(n *ast.CallExpr) {
	if slices.Contains([]string{"min", "max", "Equal", "Join", "Max", "Min", "make", "Diff"}, callName(n)) {
		return // the order says nothing, or a program fails at once
	}
	if slices.ContainsFunc(n.Args, f.isHash) {
		return // another order of what is hashed is another hash, of the same things
	}
	for i := 1; i < len(n.Args); i++ {
		a, b := n.Args[i-1], n.Args[i]
		ta, tb := f.typeOf(a), f.typeOf(b)
		if strings.HasSuffix(callName(n), "f") && f.info.Types[a].Value != nil {
			continue // a format
		}
		if ta == nil || tb == nil || !types.Identical(ta, tb) || f.text(a) == f.text(b) ||
			f.info.Types[a].Value != nil && f.info.Types[b].Value != nil {
			continue
		}
		f.add(opSwap, "swapped: "+f.text(a)+", "+f.text(b), a, f.replace(a, f.text(b)), f.replace(b, f.text(a)))
	}
}
