package grammar

import (
	"errors"
	"math/rand"
	"regexp"
	"strings"
	"testing"
)

type gbnfCase struct {
	name, grammar string
	yes, no       []string
}

var gbnfCases = []gbnfCase{
	{"literal", `root ::= "red"`, []string{"red"}, []string{"", "re", "redd", "green"}},
	{"choice", `root ::= "red" | "green" | ""`, []string{"red", "green", ""}, []string{"blue"}},
	{"lines", "# colours\nroot ::= colour ( \", \"\n  colour )* # a list\n\ncolour ::=\n  \"red\" |\n  \"green\"\n  | " +
		"\"blue\"\n",
		[]string{"red", "green, blue, red"}, []string{"red,", "red green", ""}},
	{"escapes", `root ::= "\"\\\n\t\x41\u00e9\U0001F326[" [\]\-\\^]`,
		[]string{"\"\\\n\tAé🌦[]", "\"\\\n\tAé🌦[-", "\"\\\n\tAé🌦[^"}, []string{"\"\\\n\tAé🌦[a"}},
	{"class", `root ::= [z-za-cé-ü0-9_-]+`, []string{"a1_-", "é", "üz"}, []string{"", "d", "y", "à"}},
	{"not", `root ::= [^a-c"\n]*`, []string{"", "xyz", "你好🌦"}, []string{"a", "x\"", "\n"}},
	{"any", `root ::= . "x" .?`, []string{"ax", "你x🌦", "\nx"}, []string{"x", "xyzx"}},
	{"repetitions", `root ::= "a"{2} "b"{1,3} "c"{2,} "d"{,2} "e"+ "f"?`, []string{"aabcce", "aabbbccccddeef"},
		[]string{"abcce", "aabbbbcce", "aabce", "aabccddde", "aabcc"}},
	{"large counts", `root ::= [a-z]{3,9000}`, []string{"abc", strings.Repeat("a", 9000)},
		[]string{"ab", strings.Repeat("a", 9001)}},
	{"empty inside", `root ::= ("a"? "b"?){2,4} ("c"*)* (x){3} ("d"?)+` + "\nx ::= \"\" | \"y\"",
		[]string{"", "abab", "ccyyydd", "bbbb"}, []string{"aaaaa", "yyyy", "dc"}},
	{"empty inside often", `root ::= ((("x"?){9000}){9000}){9000} (a b? | "z"?){2}` + "\na ::= b*\nb ::= \"b\"? \"c\"?",
		[]string{"", "xxx", "xxzz", "bcbbc"}, []string{"zx", "zzz"}},
	{"double", `root ::= "a"+? "b"{2}{2}`, []string{"bbbb", "aabbbb"}, []string{"bb"}},
	{"repetitions apart", "root ::= \"a\" {2} [b] + (\n\"c\"\n *) ?  # any\n",
		[]string{"aab", "aabbcc"}, []string{"ab", "aac"}},
	{"recursion", "root ::= \"(\" root \")\" | item\nitem ::= \"x\" item | \"x\"", []string{"x", "((xx))"},
		[]string{"((x)", "()"}},
	{"calculator", `root ::= expr "=" num
expr ::= term ([-+*/] term)*
term ::= num | "(" expr ")"
num ::= [0-9]+`, []string{"1+2=3", "(1+2)*3=9"}, []string{"1+=2", "(1=2"}},
	{"names", "root ::= my-rule_2\nmy-rule_2 ::= \"x\"", []string{"x"}, []string{"y"}},
	{"windows", "root ::= a\r\na ::= \"x\"\r\n", []string{"x"}, nil},
}

func TestGBNF(t *testing.T) {
	v := testVocab()
	for _, c := range gbnfCases {
		g, err := CompileGBNF(c.grammar)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, s := range c.yes {
			if !accepts(t, g, v, s) {
				t.Errorf("%s: %.50q is not accepted", c.name, s)
			}
		}
		for _, s := range c.no {
			if accepts(t, g, v, s) {
				t.Errorf("%s: %.50q is accepted", c.name, s)
			}
		}
	}
}

// TestGBNFMask: what is drawn within the mask matches the grammar, here those that a regular expression says as well.
func TestGBNFMask(t *testing.T) {
	v := testVocab()
	for grammar, expr := range map[string]string{
		`root ::= ("red" | "green") (" " [0-9]{2,3})*`: `^(red|green)( [0-9]{2,3})*$`,
		`root ::= "{" ws ("name" | "age") ws ":" [^}]{1,9} "}"` +
			"\nws ::= [ \\n]?": `^\{[ \n]?(name|age)[ \n]?:[^}]{1,9}\}$`,
		`root ::= [a-zé你]{4} .`: `(?s)^[a-zé你]{4}.$`,
	} {
		g, err := CompileGBNF(grammar)
		if err != nil {
			t.Fatal(err)
		}
		re := regexp.MustCompile(expr)
		for seed := range int64(30) {
			r := rand.New(rand.NewSource(seed))
			m := g.NewMatcher(v)
			var out []byte
			for range 200 {
				logits := make([]float32, v.size)
				m.Mask(logits)
				var allowed []int32
				for id, l := range logits {
					if l == 0 {
						allowed = append(allowed, int32(id))
						if !m.Allows(int32(id)) {
							t.Fatalf("%s: the mask leaves token %d, which is not allowed", grammar, id)
						}
					}
				}
				if len(allowed) == 0 {
					t.Fatalf("%s: nothing is allowed after %q", grammar, out)
				}
				id := allowed[r.Intn(len(allowed))]
				m.Accept(id)
				if v.isEOG[id] {
					break
				}
				out = append(out, v.pieces[id]...)
			}
			if m.ended && !re.Match(out) {
				t.Errorf("%s: drawn %q", grammar, out)
			}
		}
	}
}

func TestGBNFErrors(t *testing.T) {
	for grammar, want := range map[string]string{
		``:                                      `there is no rule named "root"`,
		`rot ::= "x"`:                           `there is no rule named "root"`,
		`root`:                                  "line 1: expected ::=",
		"root ::= \"x\"\n\n::= \"y\"":           "line 3: expected the name of a rule",
		"root ::= \"x\"\nroot ::= \"y\"":        "line 2: the rule \"root\" is defined twice",
		"root ::= \"x\"\na ::= b\n":             `line 2: the rule "b" is not defined`,
		`root ::= "x`:                           "line 1: a literal or a class is not closed",
		"root ::= \"x\n\"":                      "line 1: a literal or a class is not closed",
		`root ::= [x`:                           "not closed",
		`root ::= [z-a]`:                        "is empty",
		`root ::= []`:                           "the grammar allows nothing",
		`root ::= ("x"`:                         "expected ) but found the end",
		`root ::= "x")`:                         "unexpected ')'",
		`root ::= *`:                            "unexpected '*'",
		`root ::= "\q"`:                         `unknown escape \q`,
		`root ::= "\x4"`:                        `\x wants 2`,
		`root ::= "\ud800"`:                     "is not a character",
		`root ::= "x\`:                          "ends with a backslash",
		`root ::= "x"{`:                         "expected }",
		`root ::= "x"{a}`:                       "not a repetition",
		`root ::= "x"{}`:                        "not a repetition",
		`root ::= "x"{3,1}`:                     "the end is before",
		`root ::= "x"{10001}`:                   "at most 10000",
		`root ::= root "x" | "y"`:               "refers to itself",
		"root ::= a root | \"y\"\na ::= \"x\"?": "refers to itself",
		`root ::= "x" root`:                     "the grammar allows nothing",
		`root ::= <think>`:                      "tokens",
		"root ::= \"\xff\"":                     "UTF-8",
		`root ::= ` + strings.Repeat("(", 1000): "brackets inside",
		`root ::= "x"` + strings.Repeat("?", 1000):            "repetitions of each other",
		`root ::= (` + strings.Repeat(`"a"? `, 2000) + `){2}`: "too complex",
		strings.Repeat("x", maxGBNF+1):                        "longer than",
	} {
		_, err := CompileGBNF(grammar)
		var gerr *GBNFError
		if !errors.As(err, &gerr) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %s", grammar, err, want)
		}
	}
}

// FuzzGBNF: whatever the grammar, there is an answer or an error, and something may follow until the end.
func FuzzGBNF(f *testing.F) {
	for _, c := range gbnfCases {
		f.Add(c.grammar)
	}
	f.Add(`root ::= (("a"? | "b"*)+ ("c" | root)?)*`)
	f.Add("root ::= x{0,9}\nx ::= (\"\" | y)* \"z\"\ny ::= [^a]{3,} x?")
	v := testVocab()
	f.Fuzz(func(t *testing.T, text string) {
		g, err := CompileGBNF(text)
		if err != nil {
			return
		}
		m := g.NewMatcher(v)
		logits := make([]float32, v.size)
		for range 5 {
			clear(logits)
			m.Mask(logits)
			next := int32(-1)
			for id, l := range logits {
				if l == 0 {
					next = int32(id)
					break
				}
			}
			if next < 0 {
				t.Fatalf("%q: nothing is allowed", text)
			}
			m.Accept(next)
		}
	})
}
