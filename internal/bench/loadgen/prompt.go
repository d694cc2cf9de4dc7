package loadgen

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// vocabulary are words that most tokenizers have as one token each, with the space before it.
var vocabulary = strings.Fields(`time year people way day man thing woman life child world school state family student
group country problem hand part place case week company system program question work government number night point home
water room mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea body
information back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education large small great new old high long little own other good`)

// lengths turn tokens into words. They are measured on the first target; all get the same texts.
type lengths struct {
	perWord  float64 // tokens
	template float64 // tokens around a prompt
}

// words is how many words have a number of tokens, with or without what a template adds.
func (l lengths) words(tokens int, whole bool) int {
	n := float64(tokens)
	if whole {
		n -= l.template
	}
	return max(1, int(n/l.perWord+0.5))
}

// measured returns lengths from two prompts and their tokens. A server that does not count has one token for a word.
func measured(words1, tokens1, words2, tokens2 int) lengths {
	l := lengths{perWord: 1}
	if k := float64(tokens2-tokens1) / float64(words2-words1); k > 0.05 && k < 50 {
		l.perWord = k
		l.template = max(0, float64(tokens1)-k*float64(words1))
	}
	return l
}

// text makes n words.
func text(rng *rand.Rand, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(vocabulary[rng.IntN(len(vocabulary))])
	}
	return b.String()
}

// prompts makes the conversations of a run: those of another run on the same server are different.
type prompts struct {
	*Settings
	lengths
	run    uint64 // of this server
	shared string // what all conversations begin with
	own    int    // words of each after it
}

func newPrompts(s *Settings, l lengths, run uint64) *prompts {
	p := &prompts{Settings: s, lengths: l, run: run}
	n := l.words(s.InputLen, true)
	common := int(float64(n)*s.PrefixShare + 0.5)
	p.shared, p.own = text(rand.New(rand.NewPCG(s.Seed, ^uint64(0))), common), n-common
	return p
}

// first is how the i-th conversation begins.
func (p *prompts) first(i int) (messages []Message, rng *rand.Rand) {
	rng = rand.New(rand.NewPCG(p.Seed, p.run<<32|uint64(i)))
	if len(p.Prompts) == 0 {
		return []Message{{"user", strings.TrimSpace(p.shared + " " + text(rng, p.own))}}, rng
	}
	// The number in front keeps a prefix cache from knowing the prompt. Texts to be continued are code in most cases.
	x := &p.Prompts[i%len(p.Prompts)]
	label := "[%d] %s"
	if x.Raw {
		label = "// %d\n%s"
	}
	number := p.run*uint64((p.Requests-1)/len(p.Prompts)+1) + uint64(i/len(p.Prompts))
	messages = append(messages, x.Messages...)
	messages[0].Content = fmt.Sprintf(label, number, messages[0].Content)
	return messages, rng
}

// next adds an answer and what the user says to it.
func (p *prompts) next(messages []Message, answer string, rng *rand.Rand) []Message {
	return append(messages, Message{"assistant", answer}, Message{"user", text(rng, p.words(p.TurnLen, false))})
}

// flat is a conversation as a text to be continued.
func flat(messages []Message) string {
	var b strings.Builder
	for i, m := range messages {
		if i > 0 && m.Role != "assistant" {
			b.WriteByte('\n')
		}
		b.WriteString(m.Content)
	}
	return b.String()
}
