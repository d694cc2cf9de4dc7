package sample

// Defaults are some of the settings of Params: what a model's file, a flag or a configuration says of sampling. What it
// does not speak of is nil.
type Defaults struct {
	Temp, TopP, MinP, TypicalP                       *float32
	RepeatPenalty, FrequencyPenalty, PresencePenalty *float32
	TopK, RepeatLastN                                *int
}

// Apply puts what is given into p.
func (d *Defaults) Apply(p *Params) {
	for _, x := range []struct{ from, to *float32 }{
		{d.Temp, &p.Temp}, {d.TopP, &p.TopP}, {d.MinP, &p.MinP}, {d.TypicalP, &p.TypicalP},
		{d.RepeatPenalty, &p.RepeatPenalty}, {d.FrequencyPenalty, &p.FrequencyPenalty}, {d.PresencePenalty,
			&p.PresencePenalty},
	} {
		if x.from != nil {
			*x.to = *x.from
		}
	}
	for _, x := range []struct{ from, to *int }{{d.TopK, &p.TopK}, {d.RepeatLastN, &p.RepeatLastN}} {
		if x.from != nil {
			*x.to = *x.from
		}
	}
}

// Add takes over what o gives.
func (d *Defaults) Add(o Defaults) {
	for _, x := range []struct {
		from *float32
		to   **float32
	}{
		{o.Temp, &d.Temp}, {o.TopP, &d.TopP}, {o.MinP, &d.MinP}, {o.TypicalP, &d.TypicalP},
		{o.RepeatPenalty, &d.RepeatPenalty}, {o.FrequencyPenalty, &d.FrequencyPenalty}, {o.PresencePenalty,
			&d.PresencePenalty},
	} {
		if x.from != nil {
			*x.to = x.from
		}
	}
	if o.TopK != nil {
		d.TopK = o.TopK
	}
	if o.RepeatLastN != nil {
		d.RepeatLastN = o.RepeatLastN
	}
}
