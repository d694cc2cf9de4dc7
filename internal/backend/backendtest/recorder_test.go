package backendtest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"strobe/internal/backend"
)

// recorder is a test that keeps what it is told instead of failing.
type recorder struct {
	testing.TB
	lines    []string
	cleanups []func()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool              { return len(r.lines) > 0 }
func (r *recorder) Error(v ...any)            { r.lines = append(r.lines, strings.TrimSpace(fmt.Sprintln(v...))) }
func (r *recorder) Errorf(f string, v ...any) { r.Error(fmt.Sprintf(f, v...)) }

func (r *recorder) FailNow() { runtime.Goexit() }

func (r *recorder) Fatal(v ...any) {
	r.Error(v...)
	r.FailNow()
}

func (r *recorder) Fatalf(f string, v ...any) {
	r.Errorf(f, v...)
	r.FailNow()
}

// Skipf ends the case alone: what a device cannot do is no report.
func (r *recorder) Skipf(string, ...any) { r.FailNow() }

// record runs the cases whose names contain topic on a device and returns what they report.
func record(t *testing.T, topic string, open func() backend.Backend, o Options) (reports []string) {
	t.Helper()
	o = o.withDefaults()
	ran := 0
	for _, c := range cases(o) {
		if !strings.Contains(c.name, topic) {
			continue
		}
		ran++
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				for _, f := range r.cleanups {
					f()
				}
			}()
			c.run(&suite{r, o, func(testing.TB) backend.Backend { return open() }})
		}()
		<-done
		for _, line := range r.lines {
			reports = append(reports, c.name+": "+line)
		}
	}
	if ran == 0 {
		t.Fatalf("no case is about %q", topic)
	}
	return reports
}
