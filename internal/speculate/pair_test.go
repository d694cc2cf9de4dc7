package speculate

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"strobe/internal/backend"
	"strobe/internal/backend/cpu"
	"strobe/internal/draft/dflash"
	"strobe/internal/model"
	"strobe/models"
)

// metered is a device with a clock of its own, on which the passes of the shipped pair take what they take on two
// quiet cores. Everything else is real: the weights, the text, the controller.
type metered struct {
	backend.Backend
	now     time.Duration
	opening string                    // who is being opened
	owner   map[backend.KVPool]string // of pages
	kind    string                    // of the step in progress
	rows    float64
}

// milliseconds by rows of a pass, as points of a line.
var meteredCosts = map[string][][2]float64{
	"target": {{1, 1.19}, {2, 1.38}, {4, 1.79}, {6, 2.30}, {8, 2.79}, {16, 5.0}, {64, 17}},
	"draft":  {{1, 0.45}, {4, 0.57}, {8, 0.82}, {16, 1.45}},
	"extend": {{1, 0.04}, {129, 1.5}},
}

// NewKVPool notes whose pages they are.
func (m *metered) NewKVPool(l backend.KVLayout) (backend.KVPool, error) {
	p, err := m.Backend.NewKVPool(l)
	m.owner[p] = m.opening
	return p, err
}

func (m *metered) BeginStep(p *backend.Plan) {
	m.kind, m.rows = "", 0
	if p != nil {
		m.kind, m.rows = m.owner[p.KV[0].Pool], float64(len(p.KV[0].Slot))
	}
	if m.kind == "draft" {
		m.kind = "extend" // unless it attends
	}
	m.Backend.BeginStep(p)
}

func (m *metered) Attention(dst, q backend.Tensor, group, layer int, p backend.AttnParams) {
	if m.kind == "extend" {
		m.kind = "draft"
	}
	m.Backend.Attention(dst, q, group, layer, p)
}

func (m *metered) EndStep() (int, error) {
	m.takes(m.kind, m.rows)
	return m.Backend.EndStep()
}

// takes lets the time of a pass go by.
func (m *metered) takes(kind string, rows float64) {
	line := meteredCosts[kind]
	if line == nil {
		return
	}
	i := 1
	for i < len(line)-1 && rows > line[i][0] {
		i++
	}
	a, b := line[i-1], line[i]
	ms := a[1] + (b[1]-a[1])*(rows-a[0])/(b[0]-a[0])
	m.now += time.Duration(ms * float64(time.Millisecond))
}

// TestShippedPairPays: on held-out code automatic drafting with the shipped pair is worth half as much again as plain
// decoding. It fails when the drafter gets worse or the controller stops making use of it. Small changes move it by 2
// %.
func TestShippedPairPays(t *testing.T) {
	data, err := os.ReadFile("../../train/reference/pair.json")
	if err != nil {
		t.Fatal(err)
	}
	var ref struct{ Prompts []struct{ Prompt []int32 } }
	if err := json.Unmarshal(data, &ref); err != nil {
		t.Fatal(err)
	}
	tf, df, err := models.Open()
	if err != nil {
		t.Fatal(err)
	}
	b := &metered{Backend: cpu.New(cpu.Options{}), opening: "target", owner: map[backend.KVPool]string{}}
	defer b.Close()
	m, err := model.Open(tf, b, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b.opening = "draft"
	d, err := dflash.Open(df, m, dflash.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := runner(t, m, d)
	r.clock = func() time.Time { return time.Unix(0, 0).Add(b.now) }
	if err := r.Calibrate(time.Second); err != nil {
		t.Fatal(err)
	}
	var all Stats
	streams := 0
	for i := 0; i < len(ref.Prompts); i += 3 {
		_, st := runWith(t, r, Options{}, greedy{}, ref.Prompts[i].Prompt, 128)
		all.Add(st)
		streams++
	}
	plain := float64(all.Tokens-streams) * meteredCosts["target"][0][1]
	gain := plain / (all.DecodeTime.Seconds() * 1e3)
	t.Logf("%.2f times plain, %.2f tokens per pass", gain, all.Mean())
	if gain < 1.5 {
		t.Errorf("%.2f times plain decoding, want at least 1.5", gain)
	}
}
