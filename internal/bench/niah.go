package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"text/tabwriter"
	"time"
)

// Needle is a fact that is hidden in a long text, and the question for it.
type Needle struct {
	Line, Question, Answer string
}

// Haystack is a long text with needles in it.
type Haystack struct {
	Text    string
	Needles []Needle
}

// NiahConfig says what haystacks are made and how they are searched.
type NiahConfig struct {
	Context int  // tokens of a prompt
	Needles int  // in a haystack, with a question each
	Code    bool // of code instead of prose
	// Count returns the tokens of a text.
	Count func(text string) int
	// Ask asks a question about a text. The same question comes again when the answer should be known by then.
	Ask func(ctx context.Context, text, question string) (NiahTimes, string, error)
	// Progress, if set, is told how many questions were asked, of how many.
	Progress func(done, total int)
}

// NiahTimes is where the time of an answer went.
type NiahTimes struct {
	Seen, Kept int           // tokens
	Score      time.Duration // reading the prompt with the scorer
	Select     time.Duration // choosing, rendering and encoding
	Prefill    time.Duration // from then until the first token of the answer
	Park       time.Duration // getting the scorer back on its device
}

// First is the time to the first token.
func (t NiahTimes) First() time.Duration { return t.Score + t.Select + t.Prefill + t.Park }

// NiahRun is a question and what came of it.
type NiahRun struct {
	Needle    int
	Warm      bool // asked for the second time
	Retrieved bool
	NiahTimes
}

// NiahReport is all of them.
type NiahReport struct {
	Context int
	Kind    string
	Runs    []NiahRun
}

var proseWords = strings.Fields(`the river keeps its own calendar and nobody in the valley reads any other when mills turn slowly
bread is late and people talk longer at the doors of shops that sell thread lamps maps and salt a road follows water for a while
then leaves it for a hill where wind has bent every tree the same way travellers rest there count their coins and go on before rain`)

// NewHaystack makes a text of about so many tokens. Needles lie at even depths between a quarter and three quarters.
func NewHaystack(c NiahConfig, random *rand.Rand) Haystack {
	var h Haystack
	for range c.Needles {
		name := make([]byte, 8)
		for i := range name {
			name[i] = byte('a' + random.IntN(26))
		}
		n := Needle{Answer: fmt.Sprint(1000000 + random.IntN(9000000))}
		if c.Code {
			n.Line = fmt.Sprintf("// %s returns the special number.\nfunc %s() int { return %s }\n", name, name, n.Answer)
			n.Question = fmt.Sprintf("Which number does the function %s return? Answer with the number alone.", name)
		} else {
			n.Line = fmt.Sprintf("The special number of %s is %s.\n", name, n.Answer)
			n.Question = fmt.Sprintf("What is the special number of %s? Answer with the number alone.", name)
		}
		h.Needles = append(h.Needles, n)
	}
	word := func() string { return proseWords[random.IntN(len(proseWords))] }
	line := func() string {
		if c.Code {
			return fmt.Sprintf("func %s%d(x int) int {\n\treturn x*%d + %s%d(x-1)\n}\n", word(), random.IntN(1000),
				random.IntN(100), word(), random.IntN(1000))
		}
		words := make([]string, 9+random.IntN(8))
		for i := range words {
			words[i] = word()
		}
		return strings.ToUpper(words[0][:1]) + strings.Join(words, " ")[1:] + ".\n"
	}
	var lines []string
	size := 0
	sample := 0
	for i := range 64 { // what lines are worth, on average
		lines = append(lines, line())
		sample += len(lines[i])
	}
	perByte := float64(c.Count(strings.Join(lines, ""))) / float64(sample)
	for size = sample; float64(size)*perByte < float64(c.Context); {
		lines = append(lines, line())
		size += len(lines[len(lines)-1])
	}
	for i, n := range h.Needles { // from the last one on, so that places stay
		i = len(h.Needles) - 1 - i
		n = h.Needles[i]
		depth := 0.25 + 0.5*(float64(i)+0.5)/float64(len(h.Needles))
		at := int(depth * float64(len(lines)))
		lines[at] += n.Line
	}
	h.Text = strings.Join(lines, "")
	return h
}

// Niah asks for every needle of a haystack, twice.
func Niah(ctx context.Context, c NiahConfig) (*NiahReport, error) {
	h := NewHaystack(c, rand.New(rand.NewPCG(3, uint64(c.Context))))
	r := &NiahReport{Context: c.Context, Kind: "text"}
	if c.Code {
		r.Kind = "code"
	}
	for i, n := range h.Needles {
		for _, warm := range []bool{false, true} {
			times, answer, err := c.Ask(ctx, h.Text, n.Question)
			if err != nil {
				return nil, err
			}
			r.Runs = append(r.Runs, NiahRun{i, warm, strings.Contains(answer, n.Answer), times})
			if c.Progress != nil {
				c.Progress(len(r.Runs), 2*len(h.Needles))
			}
		}
	}
	return r, nil
}

// Retrieved is how many questions were answered rightly, of those asked for the first time.
func (r *NiahReport) Retrieved() (n, all int) {
	for _, x := range r.Runs {
		if !x.Warm {
			all++
			if x.Retrieved {
				n++
			}
		}
	}
	return n, all
}

// WriteJSON prints the report for programs. Times are nanoseconds.
func (r *NiahReport) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteText prints the report for people.
func (r *NiahReport) WriteText(w io.Writer) error {
	n, all := r.Retrieved()
	fmt.Fprintf(w, "haystack of %d tokens of %s: %d of %d needles retrieved\n", r.Context, r.Kind, n, all)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "needle\t\tseen\tread\tscore\tselect\tprefill\tpark\tfirst token\tfound\t")
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }
	for _, x := range r.Runs {
		kind, found := "cold", "no"
		if x.Warm {
			kind = "warm"
		}
		if x.Retrieved {
			found = "yes"
		}
		fmt.Fprintf(t, "%d\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t\n", x.Needle+1, kind, x.Seen, x.Kept, seconds(x.Score),
			seconds(x.Select), seconds(x.Prefill), seconds(x.Park), seconds(x.First()), found)
	}
	return t.Flush()
}
