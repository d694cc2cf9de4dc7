package fleet

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"strobe/internal/upstream"
)

// Settings are what is simulated.
type Settings struct {
	Replicas int `json:"replicas"`
	Parallel int `json:"parallel"` // slots of each
	Chunk    int `json:"chunk"`    // tokens of prompts in a step

	// Agents talk in turns: each sends its whole conversation, gets an answer, runs a tool, and so on.
	Agents   int           `json:"agents"`
	Projects int           `json:"projects"` // agents of one begin with the same system prompt
	Turns    int           `json:"turns"`
	System   int           `json:"system_tokens"` // of that prompt
	User     int           `json:"user_tokens"`   // new ones in a turn, on average
	Answer   int           `json:"answer_tokens"` // likewise
	Think    time.Duration `json:"think_ns"`      // between an answer and the next turn, on average
	Seed     uint64        `json:"seed"`
}

// Check says what is wrong with settings, in the words of the command's flags.
func (s *Settings) Check() error {
	for _, x := range []struct {
		name              string
		value, from, most int
	}{
		{"replicas", s.Replicas, 1, 1000}, {"parallel", s.Parallel, 1, 1000}, {"chunk", s.Chunk, 1, 1 << 20},
		{"agents", s.Agents, 1, 100_000}, {"projects", s.Projects, 1, 100_000}, {"turns", s.Turns, 1, 1000},
		{"system-tokens", s.System, 0, 1 << 20}, {"user-tokens", s.User, 1, 1 << 20}, {"answer-tokens", s.Answer, 1, 1 << 16},
	} {
		if x.value < x.from || x.value > x.most {
			return fmt.Errorf("--%s %d: want %d to %d", x.name, x.value, x.from, x.most)
		}
	}
	if s.Think < 0 {
		return fmt.Errorf("--think %v: want at least 0", s.Think)
	}
	return nil
}

// Outcome is what a policy made of it.
type Outcome struct {
	Policy   string  `json:"policy"`
	Requests int     `json:"requests"`
	Seconds  float64 `json:"seconds"` // until the last answer
	Speed    float64 `json:"tokens_per_second"`
	HitRate  float64 `json:"prefix_hit_rate"` // of prompt tokens
	Busiest  float64 `json:"busiest"`         // requests of the busiest server, as a multiple of the mean
	Queue    Spread  `json:"queue_ms"`
	First    Spread  `json:"first_token_ms"` // queue included
	Total    Spread  `json:"answer_ms"`
}

// Spread is a distribution in short, in milliseconds.
type Spread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
}

func spread(d []time.Duration) (s Spread) {
	slices.Sort(d)
	ms := func(x time.Duration) float64 { return float64(x.Microseconds()) / 1e3 }
	var sum time.Duration
	for _, x := range d {
		sum += x
	}
	n := len(d)
	return Spread{ms(sum / time.Duration(n)), ms(d[(n-1)/2]), ms(d[(n-1)*95/100])}
}

// Simulate runs the same traffic under a policy.
func Simulate(s Settings, service Service, policy upstream.Policy) Outcome {
	sim := &simulation{Settings: s, service: service, policy: policy}
	for i := range s.Replicas {
		r := &replica{name: fmt.Sprint("http://server", i), cache: prefixes{limit: service.CacheTokens}}
		sim.replicas = append(sim.replicas, r)
	}
	for i := range s.Agents {
		sim.agents = append(sim.agents, newAgent(&s, i))
		sim.at(sim.agents[i].pauses[0], func() { sim.send(sim.agents[i]) })
	}
	for sim.events.Len() > 0 {
		e := heap.Pop(&sim.events).(event)
		sim.now = e.at
		e.do()
	}
	return sim.outcome()
}

// agent is a conversation that goes on.
type agent struct {
	id, project int
	key         uint64
	turn        int
	length      int // tokens of the conversation so far
	user        []int
	answer      []int
	pauses      []time.Duration // before each turn
}

// newAgent draws everything that an agent will do, so that it does the same under every policy.
func newAgent(s *Settings, id int) *agent {
	rng := rand.New(rand.NewPCG(s.Seed, uint64(id)))
	a := &agent{id: id, project: rng.IntN(s.Projects), length: s.System}
	body, err := json.Marshal(map[string]any{"messages": []map[string]string{
		{"role": "system", "content": fmt.Sprint("project ", a.project)},
		{"role": "user", "content": fmt.Sprint("task ", id)},
	}})
	if err != nil {
		panic(err) // texts and numbers always encode
	}
	a.key = upstream.Key(body)
	around := func(mean int) int { return max(1, int(float64(mean)*(0.5+rng.Float64()))) }
	for range s.Turns {
		a.user = append(a.user, around(s.User))
		a.answer = append(a.answer, around(s.Answer))
		a.pauses = append(a.pauses, time.Duration(rng.ExpFloat64()*float64(s.Think)))
	}
	return a
}

// request is one turn of an agent.
type request struct {
	*agent
	prompt, left   int // tokens; of them, those that have yet to be run
	out, want      int // generated, and how many it will be
	came, admitted time.Duration
	first          time.Duration
}

// replica is a server.
type replica struct {
	name     string
	queue    []*request
	running  []*request
	stepping bool
	cache    prefixes
	served   int
}

// simulation is a run of events in order.
type simulation struct {
	Settings
	service  Service
	policy   upstream.Policy
	now      time.Duration
	events   events
	count    uint64
	turn     uint64
	replicas []*replica
	agents   []*agent

	prompt, hit, tokens int
	queued, first, all  []time.Duration
}

// event is something that happens at a time. Those of one time happen in the order they were planned.
type event struct {
	at time.Duration
	n  uint64
	do func()
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].n, h[j].n)) < 0
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

func (s *simulation) at(t time.Duration, do func()) {
	s.count++
	heap.Push(&s.events, event{t, s.count, do})
}

// send lets the router choose a server for an agent's next turn.
func (s *simulation) send(a *agent) {
	nodes := make([]upstream.Node, len(s.replicas))
	for i, r := range s.replicas {
		nodes[i] = upstream.Node{Name: r.name, Load: len(r.queue) + len(r.running)}
	}
	s.turn++
	r := s.replicas[s.policy.Order(nodes, a.key, s.turn)[0]]
	r.served++
	q := &request{agent: a, prompt: a.length + a.user[a.turn], want: a.answer[a.turn], came: s.now}
	r.queue = append(r.queue, q)
	if !r.stepping {
		s.step(r)
	}
}

// step begins the next step of a server: a token for every stream that generates, and a chunk of prompts.
func (s *simulation) step(r *replica) {
	for len(r.queue) > 0 && len(r.running) < s.Parallel {
		q := r.queue[0]
		r.queue = r.queue[1:]
		q.admitted = s.now
		found := min(r.cache.find(q.agent, s.System), q.prompt-1) // the last token is always run
		q.left = q.prompt - found
		s.prompt += q.prompt
		s.hit += found
		r.running = append(r.running, q)
	}
	r.stepping = len(r.running) > 0
	if !r.stepping {
		return
	}
	var generating []*request
	chunks := map[*request]int{}
	room := s.Chunk
	for _, q := range r.running {
		if q.left == 0 {
			generating = append(generating, q)
		} else if n := min(q.left, room); n > 0 {
			chunks[q] = n
			room -= n
		}
	}
	took := time.Duration(s.Chunk-room)*s.service.Prompt + s.service.token(len(generating))
	s.at(s.now+took, func() { s.stepped(r, generating, chunks) })
}

// stepped books what a step did.
func (s *simulation) stepped(r *replica, generating []*request, chunks map[*request]int) {
	for _, q := range generating {
		q.out++
	}
	for q, n := range chunks {
		if q.left -= n; q.left == 0 {
			q.out, q.first = 1, s.now // the prompt's pass yields it
		}
	}
	r.running = slices.DeleteFunc(r.running, func(q *request) bool {
		if q.out < q.want || q.left > 0 {
			return false
		}
		s.end(r, q)
		return true
	})
	s.step(r)
}

// end books an answer and plans the agent's next turn.
func (s *simulation) end(r *replica, q *request) {
	s.tokens += q.out
	s.queued = append(s.queued, q.admitted-q.came)
	s.first = append(s.first, q.first-q.came)
	s.all = append(s.all, s.now-q.came)
	a := q.agent
	a.length = q.prompt + q.out
	r.cache.keep(a, s.System)
	if a.turn++; a.turn < s.Turns {
		s.at(s.now+a.pauses[a.turn], func() { s.send(a) })
	}
}

func (s *simulation) outcome() Outcome {
	busiest := 0
	for _, r := range s.replicas {
		busiest = max(busiest, r.served)
	}
	n := len(s.all)
	return Outcome{
		Policy: s.policy.String(), Requests: n, Seconds: s.now.Seconds(), Speed: float64(s.tokens) / s.now.Seconds(),
		HitRate: float64(s.hit) / float64(s.prompt), Busiest: float64(busiest*len(s.replicas)) / float64(n),
		Queue: spread(s.queued), First: spread(s.first), Total: spread(s.all),
	}
}

// prefixes is a server's prefix cache: conversations, and the system prompts they share.
type prefixes struct {
	limit, used int
	entries     []prefix // least recently used first
}

type prefix struct {
	agent  int // -1 is a system prompt
	id     int // of the project, if it is one
	length int // of the whole beginning
	own    int // tokens that only this entry holds
}

// find is how many tokens of an agent's conversation are known.
func (p *prefixes) find(a *agent, system int) int {
	n := 0
	if e := p.touch(-1, a.project); e != nil {
		n = system
	}
	if e := p.touch(a.id, 0); e != nil {
		n = max(n, e.length)
	}
	return n
}

// touch makes an entry the one used last.
func (p *prefixes) touch(agent, id int) *prefix {
	i := slices.IndexFunc(p.entries, func(e prefix) bool { return e.agent == agent && e.id == id })
	if i < 0 {
		return nil
	}
	e := p.entries[i]
	p.entries = append(slices.Delete(p.entries, i, i+1), e)
	return &p.entries[len(p.entries)-1]
}

// keep remembers a conversation, and forgets what was used least recently when there is no room.
func (p *prefixes) keep(a *agent, system int) {
	put := func(agent, id, length, own int) {
		if e := p.touch(agent, id); e != nil {
			p.used += own - e.own
			e.length, e.own = length, own
			return
		}
		p.entries = append(p.entries, prefix{agent, id, length, own})
		p.used += own
	}
	put(-1, a.project, system, system)
	put(a.id, 0, a.length, a.length-system)
	for p.used > p.limit && len(p.entries) > 0 {
		p.used -= p.entries[0].own
		p.entries = p.entries[1:]
	}
}
