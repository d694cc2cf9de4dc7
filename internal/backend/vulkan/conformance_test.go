//go:build !nogpu

package vulkan_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"strobe/internal/backend"
	"strobe/internal/backend/backendtest"
	"strobe/internal/backend/gpu"
	"strobe/internal/backend/vulkan"
	"strobe/internal/quant"
	"strobe/internal/testkit/modeltest"
)

// openDriver opens the device that tests run on: the first one, or the one whose number is in $STROBE_VULKAN. Its
// calls are checked by the validation layer if $STROBE_VULKAN_VALIDATE is set. Without a driver tests are skipped,
// unless $STROBE_REQUIRE_VULKAN is set.
func openDriver(t testing.TB) gpu.Driver {
	t.Helper()
	d, err := vulkan.Open(index(), vulkan.Options{Validate: os.Getenv("STROBE_VULKAN_VALIDATE") != "",
		Shared: os.Getenv("STROBE_VULKAN_SHARED") != ""})
	if err != nil {
		if os.Getenv("STROBE_REQUIRE_VULKAN") == "" && (errors.Is(err, vulkan.ErrNoDriver) || noDevice()) {
			t.Skipf("needs a Vulkan driver, such as mesa-vulkan-drivers: %v", err)
		}
		t.Fatal(err)
	}
	said := len(messages(d))
	t.Cleanup(func() {
		for _, m := range messages(d)[said:] {
			t.Errorf("the validation layer says: %s", m)
		}
	})
	return d
}

func messages(d gpu.Driver) []string { return d.(interface{ Messages() []string }).Messages() }

func index() int {
	n, _ := strconv.Atoi(os.Getenv("STROBE_VULKAN"))
	return n
}

// software reports whether tests run on the processor, where everything takes long.
func software() bool {
	ds, err := vulkan.Devices()
	return err == nil && index() < len(ds) && ds[index()].Software
}

func noDevice() bool {
	ds, err := vulkan.Devices()
	return err == nil && len(ds) == 0
}

func open(t testing.TB) backend.Backend {
	t.Helper()
	b, err := gpu.New(openDriver(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lasting is a device that stays open for a whole test: kernels are compiled once.
type lasting struct{ *gpu.Backend }

func (lasting) Close() error { return nil }

func openLasting(t testing.TB) backend.Backend {
	b := open(t)
	t.Cleanup(func() { b.Close() })
	return lasting{b.(*gpu.Backend)}
}

// bound: activations are rounded to bytes for products with quantised weights.
func bound(typ quant.Type, cols int) float64 {
	if typ.Quantized() && cols >= 512 {
		return 5e-2
	}
	return backendtest.ExactProduct(typ, cols)
}

// TestConformance runs the suite that every device passes.
func TestConformance(t *testing.T) {
	o := backendtest.Options{Product: bound,
		Stored: func(typ quant.Type) float64 {
			if typ.Grid() != nil {
				return 0x1p-11 // halves, or with scales that are
			}
			return 0
		}}
	if software() {
		// Every kernel is compiled for the processor, which takes longer than running it. More rows are in TestSubgroups.
		o.Rows = []int{1, 3}
		o.BigRow = 20_000
	}
	b := openLasting(t)
	backendtest.Run(t, func(testing.TB) backend.Backend { return b }, o)
}

// TestReadSpeed: the measure of memory's speed runs and is a number.
func TestReadSpeed(t *testing.T) {
	b := open(t).(*gpu.Backend)
	defer b.Close()
	if v, err := b.ReadSpeed(1<<20, 2); err != nil || !(v > 0) {
		t.Errorf("%v bytes a second, %v", v, err)
	}
}

// TestThenHeads: the delta rule that goes on to the input of the next product leaves the bits of operations by
// themselves, for several sequences.
func TestThenHeads(t *testing.T) {
	b := open(t).(*gpu.Backend)
	defer b.Close()
	d := backend.DeltaDims{KHeads: 2, VHeads: 4, KDim: 128, VDim: 128, Kernel: 4, Eps: 1e-6}
	const rows, width, outs = 3, 4 * 128, 40
	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		return v
	}
	tensor := func(cols int) backend.Tensor { return must[backend.Tensor](t)(b.Alloc(rows, cols)) }
	vector := func(n int) backend.Vector { return must[backend.Vector](t)(b.Vector(random(n))) }
	raw := make([]byte, outs*quant.Q4_K.RowBytes(width))
	if err := quant.Quantize(quant.Q4_K, raw, random(outs*width)); err != nil {
		t.Fatal(err)
	}
	w := must[backend.Weight](t)(b.Weight(backend.Matrix{Name: "out", Type: quant.Q4_K, Rows: outs, Cols: width,
		Experts: 1, Data: raw}))
	states := must[backend.StatePool](t)(b.NewStatePool(d, 1))
	u, conv, alpha, beta := tensor(d.ConvDim()), tensor(d.ConvDim()), tensor(d.VHeads), tensor(d.VHeads)
	y, z, out := tensor(width), tensor(width), tensor(outs)
	for _, v := range []backend.Tensor{u, alpha, beta, z} {
		b.Write(v, random(v.Rows*v.Cols))
	}
	taps, decay, dt, norm := vector(d.ConvDim()*d.Kernel), vector(d.VHeads), vector(d.VHeads), vector(d.VDim)
	run := func(together bool) []float32 {
		plan := &backend.Plan{State: states}
		for i, n := range []int{2, 1} {
			slot := must[int32](t)(states.Alloc())
			if err := states.Reserve(slot, n); err != nil {
				t.Fatal(err)
			}
			plan.Delta = append(plan.Delta, backend.DeltaSeg{Row: 2 * i, N: n, Slot: slot})
		}
		b.BeginStep(plan)
		b.ShortConv(conv, u, taps, 0)
		b.GatedDelta(y, conv, alpha, beta, decay, dt, 0)
		if !together {
			must[int](t)(b.EndStep())
		}
		b.RMSNorm(y.Split(d.VHeads), y.Split(d.VHeads), norm, 1e-6)
		b.Gated(y, z, y, backend.SiLU)
		b.MatMul(y, backend.Product{W: w, Y: out})
		b.Copy(y, z) // nobody reads y
		if together {
			must[int](t)(b.EndStep())
		}
		return slices.Clone(b.Read(out))
	}
	want := run(false)
	var got []float32
	kernels, err := b.Profile(func() error { got = run(true); return nil })
	if err != nil {
		t.Fatal(err)
	}
	const name = "delta_rule_128_then"
	if !slices.ContainsFunc(kernels, func(k gpu.KernelTime) bool { return k.Name == name }) {
		t.Errorf("no kernel %s: %v", name, kernels)
	}
	if !slices.Equal(got, want) || slices.Max(want) == 0 {
		t.Errorf("%v instead of %v", got, want)
	}
}

// must returns what a call returned, unless that was an error.
func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestSubgroups is a little of everything, for subgroups of other sizes (LP_NATIVE_VECTOR_WIDTH) and without shuffles.
func TestSubgroups(t *testing.T) {
	o := backendtest.Options{Rows: []int{1, 16}, Weights: []quant.Type{quant.F32, quant.Q4_K, quant.Q6_K},
		KV: []quant.Type{quant.F16}, Heads: []int{64}, BigRow: 9000, Product: bound,
		Delta: []backend.DeltaDims{{KHeads: 2, VHeads: 4, KDim: 32, VDim: 48, Kernel: 4, Eps: 1e-6}}}
	b := openLasting(t)
	backendtest.Run(t, func(testing.TB) backend.Backend { return b }, o)
	modeltest.Suite{Backend: b, Few: true}.Identity(t, "qwen35")
}
