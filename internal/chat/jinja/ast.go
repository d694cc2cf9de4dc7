package jinja

// Nodes of a parsed template. Statements and expressions share one interface;
// the parser never puts one where the other belongs.
type node any

type (
	dataStmt struct{ s string }
	outStmt  struct {
		e    node
		line int
	}
	ifStmt struct {
		conds  []node // one per branch
		bodies [][]node
		els    []node
		lines  []int
	}
	forStmt struct {
		target    node // *nameExpr or *tupleTarget
		iter      node
		cond      node // nil without a filter
		body, els []node
		line      int
	}
	setStmt struct {
		target node
		e      node
		line   int
	}
	setBlockStmt struct {
		target  node
		filters node // nil without filters; its innermost operand is holeExpr
		body    []node
		line    int
	}
	macroStmt struct {
		name     string
		args     []string
		defaults []node // aligned with the last len(defaults) args
		body     []node
		line     int
		// which of the implicit names the body mentions
		varargs, kwargs, caller bool
	}
	callStmt struct {
		call *callExpr
		body *macroStmt // becomes the caller
		line int
	}
	filterStmt struct {
		e    node
		body []node
		line int
	}
	withStmt struct {
		targets []node
		values  []node
		body    []node
		line    int
	}
	scopeStmt    struct{ body []node } // {% generation %}: output only
	breakStmt    struct{}
	continueStmt struct{}

	tupleTarget struct{ items []node }
	nsTarget    struct{ name, attr string }

	constExpr struct{ v any }
	nameExpr  struct {
		name string
		line int
	}
	attrExpr struct {
		e    node
		name string
		line int
	}
	itemExpr struct {
		e, key node
		line   int
	}
	sliceExpr struct {
		e                 node
		start, stop, step node // nil when absent
		line              int
	}
	callExpr struct {
		f    node
		args callArgs
		line int
	}
	filterExpr struct {
		e    node
		name string
		fn   filterFunc
		args callArgs
		line int
	}
	testExpr struct {
		e    node
		name string
		fn   testFunc
		args callArgs
		neg  bool
		line int
	}
	binExpr struct {
		op   string
		a, b node
		line int
	}
	logicExpr struct {
		and  bool
		a, b node
	}
	notExpr  struct{ e node }
	signExpr struct {
		neg  bool
		e    node
		line int
	}
	compareExpr struct {
		e    node
		ops  []string
		rhs  []node
		line int
	}
	concatExpr struct{ items []node }
	condExpr   struct {
		then, cond, els node // els may be nil
		line            int
	}
	listExpr struct {
		items []node
		tuple bool
	}
	dictExpr struct {
		keys, values []node
		line         int
	}
	holeExpr struct{} // the text a filter block or set block collected
)

type callArgs struct {
	pos  []node
	kw   []kwArg
	star node // *args, nil when absent
	dict node // **kwargs, nil when absent
}

type kwArg struct {
	name string
	e    node
}
