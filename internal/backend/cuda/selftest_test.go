package cuda

import (
	"errors"
	"strings"
	"testing"

	"strobe/internal/backend/gpu"
)

// opened is a device as openTested sees it.
type opened struct {
	gpu.Driver
	props  gpu.Props
	why    error
	closed *int
}

func (o opened) Props() gpu.Props { return o.props }
func (o opened) Close() error     { *o.closed++; return nil }

// TestSelfTestFailed: a device whose newer kernels fail the self-test is used with older ones; one whose older ones
// fail is refused. What failed is closed.
func TestSelfTestFailed(t *testing.T) {
	broken := errors.New("it computes wrongly")
	for _, c := range []struct {
		major  int
		fails  map[string]bool // by the capability it is opened as
		want   string          // part of the error
		opened string          // as
		closed int
	}{
		{9, nil, "", "", 0},
		{9, map[string]bool{"": true}, "", "8.0", 1},
		{9, map[string]bool{"": true, "8.0": true}, "opening card: the self-test failed: it computes wrongly", "", 2},
		{8, map[string]bool{"": true}, "opening card: the self-test failed: it computes wrongly", "", 1},
	} {
		closed, last := 0, ""
		open := func(dev Device, as string, why error) (gpu.Driver, error) {
			last = as
			p := gpu.Props{Major: c.major}
			if err := pretend(&gpu.Props{Major: 9, SharedBlock: 227 << 10}, as); err != nil {
				return nil, err
			}
			if as != "" {
				p.Major = 8
			}
			return opened{props: p, why: why, closed: &closed}, nil
		}
		test := func(gpu.Driver) error {
			if c.fails[last] {
				return broken
			}
			return nil
		}
		d, err := openTested(Device{Name: "card"}, open, test)
		switch {
		case c.want != "":
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v", c, err)
			}
		case err != nil || last != c.opened || (c.opened != "") != errors.Is(d.(opened).why, broken):
			t.Errorf("%+v: opened as %q, %v", c, last, err)
		}
		if closed != c.closed {
			t.Errorf("%+v: closed %d times", c, closed)
		}
	}
}
