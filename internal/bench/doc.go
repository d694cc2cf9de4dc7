// Package bench measures how fast a model generates text, with and without drafting, and how far
// that is from what the machine could do.
//
//	prompts, err := bench.Suite("code", "")           // or ReadPrompts
//	report, err := bench.Measure(ctx, m, bench.Config{Modes: modes, Cases: cases, Tokens: 128, Repeats: 3})
//	report.Machine, err = bench.MeasureMachine(ctx, m, bench.MachineConfig{})
//	report.WriteText(os.Stdout, false)
//
// Every repeat runs every prompt in every mode, one after the other, so that what else the machine
// does hits all modes alike; ratios are formed inside a repeat. The same tokens are generated in every
// mode, and the report says whether they were the same. The README of this folder describes
// the JSON form of a Report.
//
// Nothing here prints or reads flags. A measurement uses the model's goroutine and starts no other
// that outlives it.
package bench
