package gpu

import (
	"cmp"
	"slices"
	"time"
)

// KernelTime is what the launches of one kernel took in a profiled step.
type KernelTime struct {
	Name  string
	Count int
	Time  time.Duration
}

// Timer is a driver that can time launches.
type Timer interface {
	Times(ls []Launch) ([]time.Duration, error)
}

// Profile has the steps that fn runs launched kernel by kernel, and returns the time of every kernel, the longest
// first. Kernels do not overlap then as they do in a recorded step, so the sum is more than the step takes.
func (b *Backend) Profile(fn func() error) ([]KernelTime, error) {
	b.profile = map[string]*KernelTime{}
	defer func() { b.profile = nil }()
	if err := fn(); err != nil {
		return nil, err
	}
	var list []KernelTime
	for _, k := range b.profile {
		list = append(list, *k)
	}
	slices.SortFunc(list, func(x, y KernelTime) int { return cmp.Compare(y.Time, x.Time) })
	return list, b.Sync()
}

// timed runs launches one by one and adds their times to the profile.
func (b *Backend) timed(ls []Launch) {
	t, ok := b.d.(Timer)
	if !ok {
		for i := range ls {
			b.d.Launch(&ls[i])
		}
		return
	}
	times, err := t.Times(ls)
	if err != nil {
		b.fail(err)
		return
	}
	for i, l := range ls {
		k := b.profile[l.Name]
		if k == nil {
			k = &KernelTime{Name: l.Name}
			b.profile[l.Name] = k
		}
		k.Count++
		k.Time += times[i]
	}
}

// Bandwidth measures how many bytes a second the device's memory reads and writes, by copying more than its caches
// hold. Without tensor cores it is a kernel that reads: what copies there need not use all of the memory's speed.
func (b *Backend) Bandwidth() (float64, error) {
	const bytes, rounds = 1 << 30, 8
	if b.props.NoTensorCores {
		return b.ReadSpeed(bytes, rounds)
	}
	from, err := b.d.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	defer b.d.Release(from)
	to, err := b.d.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	defer b.d.Release(to)
	b.d.Copy(to, from, bytes)
	if err := b.d.Wait(); err != nil {
		return 0, err
	}
	start := time.Now()
	for range rounds {
		b.d.Copy(to, from, bytes)
	}
	err = b.d.Wait()
	return 2 * rounds * bytes / time.Since(start).Seconds(), err
}
